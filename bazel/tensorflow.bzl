"""The TensorFlow that the library is compiled against."""

# Asked of TensorFlow, never hand-written: an ABI that differs from the wheel's
# fails at load time.
_ASK = """
import json, tensorflow as tf
print(json.dumps({
    "include": tf.sysconfig.get_include(),
    "lib": tf.sysconfig.get_lib(),
    "compile": tf.sysconfig.get_compile_flags(),
    "link": tf.sysconfig.get_link_flags(),
}))
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "tensorflow",
    srcs = {srcs},
    hdrs = glob(["include/**"], exclude = ["**/*.so"]),
    includes = ["include"],
    deps = {deps},
)
"""

def _find_python(repository_ctx):
    name = repository_ctx.os.environ.get("PICASSO_PYTHON", "python3")
    if name.startswith("/"):
        return name
    python = None if "/" in name else repository_ctx.which(name)
    if python == None:
        fail("PICASSO_PYTHON=%s is neither an absolute path nor on PATH" % name)
    return python

def _tensorflow_repository_impl(repository_ctx):
    if repository_ctx.attr.deps:
        # The server's own TensorFlow, whose build sets the flags.
        srcs, flags = [], []
    else:
        python = _find_python(repository_ctx)
        run = repository_ctx.execute(
            [python, "-c", _ASK],
            environment = {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        if run.return_code != 0:
            fail("%s cannot import TensorFlow. Name a python that can in the " % python +
                 "environment variable PICASSO_PYTHON.\n" + run.stderr[-500:])
        found = json.decode(run.stdout.strip().split("\n")[-1])
        repository_ctx.symlink(found["include"], "include")
        srcs = [flag[3:] for flag in found["link"] if flag.startswith("-l:")]
        for library in srcs:
            repository_ctx.symlink(found["lib"] + "/" + library, library)
        flags = [flag for flag in found["compile"] if not flag.startswith("-I")]
    repository_ctx.file("BUILD", _BUILD.format(
        srcs = repr(srcs),
        deps = repr([str(label) for label in repository_ctx.attr.deps]),
    ))
    repository_ctx.file("flags.bzl", "TF_COMPILE_FLAGS = %r\n" % flags)

tensorflow_repository = repository_rule(
    implementation = _tensorflow_repository_impl,
    doc = "Headers, framework library and compile flags of the TensorFlow that the " +
          "python in PICASSO_PYTHON imports (python3 where it is not set).",
    attrs = {
        "deps": attr.label_list(
            doc = "Targets of a TensorFlow built from source, in place of python's.",
        ),
    },
    environ = ["PICASSO_PYTHON"],
    local = True,  # pip may have changed TensorFlow since
)
