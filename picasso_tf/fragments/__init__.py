"""What is recognised in a graph: one file per thing, graph in, dataclass out."""
