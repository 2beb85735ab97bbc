// The Grappler shell: hands the raw graph to the Python pipeline, runs
// TensorFlow's own optimizers on the result under the user's configuration, and
// hands what they made of it to the pipeline's second phase.
//
// It is named alone in RewriterConfig.optimizers, which makes it run first but
// switches the built-in optimizers off; so it runs them itself, through
// RunMetaOptimizer, with those fields of the configuration put back that
// picasso_tf/grappler.py had to overwrite.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/clusters/cluster.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"
#include "tensorflow/core/grappler/optimizers/meta_optimizer.h"
#include "tensorflow/core/platform/logging.h"

namespace picasso {

using tensorflow::ConfigProto;
using tensorflow::GraphDef;
using tensorflow::RewriterConfig;
using tensorflow::Status;
using tensorflow::grappler::Cluster;
using tensorflow::grappler::CustomGraphOptimizer;
using tensorflow::grappler::GrapplerItem;
namespace errors = tensorflow::errors;

// What the callback returns.
enum Reply { kUnchanged = 0, kRewritten = 1, kFailed = 2 };

// graph: a serialised GraphDef without library, of the nodes that the named
// ones need; names are joined by newlines. `preserve` may be fetched, `keep`
// only has to run; with may_prune, nothing else that these do not need has to
// run. phase: 0 before TensorFlow's own optimizers, 1 behind them; both calls
// for one graph have the same `run`. `inlined`: functions whose bodies are in
// the graph in place of all their calls. The answer, a GraphDef or an error
// message, is given by PicassoReply.
using RewriteCallback = int (*)(const char* graph, int64_t graph_size,
                                const char* feeds, const char* preserve,
                                const char* keep, int may_prune,
                                int squares_powers, int phase, int64_t run,
                                const char* item, const char* inlined,
                                const char* options, void* reply);

namespace {

std::atomic<RewriteCallback> callback{nullptr};

constexpr int kPhases = 2;

// Op types that a pass of a phase may rewrite; set once, before the callback.
std::set<std::string>* TriggerOps(int phase) {
  static auto* ops = new std::set<std::string>[kPhases];
  return &ops[phase];
}

// Ops whose functions TensorFlow's function optimizer inlines or lowers.
const std::set<std::string>& FunctionalOps() {
  static const auto* ops = new std::set<std::string>{"PartitionedCall",
                                                     "StatefulPartitionedCall",
                                                     "If",
                                                     "StatelessIf",
                                                     "Case",
                                                     "StatelessCase",
                                                     "While",
                                                     "StatelessWhile"};
  return *ops;
}

void SplitInto(const std::string& names, std::set<std::string>* split) {
  for (size_t begin = 0; begin < names.size();) {
    size_t end = names.find('\n', begin);
    if (end == std::string::npos) end = names.size();
    split->insert(names.substr(begin, end - begin));
    begin = end + 1;
  }
}

template <typename Names>
std::string Join(const Names& names) {
  std::string joined;
  for (const auto& name : names) {
    if (!joined.empty()) joined += '\n';
    joined += name;
  }
  return joined;
}

std::string NodeName(const std::string& tensor) {
  return tensor.substr(0, tensor.find(':'));
}

// Whether a node may not vanish although nobody reads it; functions that are
// called are not known here. As has_effect of picasso_tf/node.py.
bool HasEffect(const std::string& op) {
  static const auto* sources = new std::set<std::string>{
      "Placeholder", "PlaceholderWithDefault", "_Arg", "_Retval"};
  const tensorflow::OpDef* def = nullptr;
  return sources->count(op) > 0 ||
         !tensorflow::OpRegistry::Global()->LookUpOpDef(op, &def).ok() ||
         def->is_stateful();
}

// By a node's number, whether the nodes of these names depend on it.
std::vector<bool> NeededBy(const GraphDef& graph,
                           const std::vector<std::string>& names) {
  std::unordered_map<std::string_view, int> numbers;
  numbers.reserve(graph.node_size());
  for (int i = 0; i < graph.node_size(); ++i) numbers[graph.node(i).name()] = i;
  std::vector<bool> needed(graph.node_size());
  std::vector<int> pending;
  const auto need = [&](std::string_view name) {
    const auto found = numbers.find(name);
    if (found == numbers.end() || needed[found->second]) return;
    needed[found->second] = true;
    pending.push_back(found->second);
  };
  for (const auto& name : names) need(name);
  while (!pending.empty()) {
    const auto& node = graph.node(pending.back());
    pending.pop_back();
    for (const std::string_view input : node.input()) {
      need(input[0] == '^' ? input.substr(1)
                           : input.substr(0, input.find(':')));
    }
  }
  return needed;
}

// The nodes with effects, unless Grappler may drop even those.
void AddEffects(const GrapplerItem& item, std::vector<std::string>* names) {
  if (item.optimization_options().allow_pruning_stateful_and_dataset_ops)
    return;
  std::unordered_map<std::string_view, bool> known;
  for (const auto& node : item.graph.node()) {
    auto [entry, is_new] = known.try_emplace(node.op(), false);
    if (is_new) entry->second = HasEffect(node.op());
    if (entry->second) names->push_back(node.name());
  }
}

}  // namespace

class PicassoOptimizer : public CustomGraphOptimizer {
 public:
  std::string name() const override { return "picasso"; }
  bool UsesFunctionLibrary() const override { return true; }

  Status Init(
      const tensorflow::RewriterConfig_CustomGraphOptimizer* config) override {
    if (config == nullptr) return tensorflow::OkStatus();
    const auto& parameters = config->parameter_map();
    const auto options = parameters.find("options");
    if (options != parameters.end()) options_ = options->second.s();
    const auto user = parameters.find("user_rewriter_config");
    if (user != parameters.end() &&
        !user_config_.ParseFromString(user->second.s())) {
      return errors::InvalidArgument(
          "picasso: 'user_rewriter_config' is no RewriterConfig.");
    }
    return tensorflow::OkStatus();
  }

  Status Optimize(Cluster* cluster, const GrapplerItem& item,
                  GraphDef* optimized) override {
    static std::atomic<int64_t> runs{0};
    const int64_t run = ++runs;
    GrapplerItem rewritten(item);
    std::set<std::string> inlined;
    TF_RETURN_IF_ERROR(InlineCalls(cluster, &rewritten, &inlined));
    TF_RETURN_IF_ERROR(Rewrite(0, run, inlined, &rewritten));
    if (!user_config_.disable_meta_optimizer()) {
      GraphDef graph;
      graph.Swap(&rewritten.graph);
      GrapplerItem optimizing = rewritten.WithGraph(std::move(graph));
      // The caller walks the function library with this optimizer by itself.
      optimizing.optimization_options().optimize_function_library = false;
      ConfigProto config = config_proto_;
      RestoreUserFields(
          config.mutable_graph_options()->mutable_rewrite_options());
      GraphDef result;
      TF_RETURN_IF_ERROR(tensorflow::grappler::RunMetaOptimizer(
          std::move(optimizing), config, /*cpu_device=*/nullptr, cluster,
          &result));
      rewritten.graph.Swap(&result);
    }
    TF_RETURN_IF_ERROR(Rewrite(1, run, inlined, &rewritten));
    optimized->Swap(&rewritten.graph);
    return tensorflow::OkStatus();
  }

 private:
  // Whether TensorFlow's optimizer of this name and with this toggle will run.
  bool Runs(const char* name, RewriterConfig::Toggle toggle) const {
    if (user_config_.disable_meta_optimizer()) return false;
    const auto& chosen = user_config_.optimizers();
    return chosen.empty()
               ? toggle != RewriterConfig::OFF
               : std::find(chosen.begin(), chosen.end(), name) != chosen.end();
  }

  // Undoes what picasso_tf/grappler.py changed; all other fields are live.
  void RestoreUserFields(RewriterConfig* config) const {
    config->mutable_optimizers()->CopyFrom(user_config_.optimizers());
    config->mutable_custom_optimizers()->CopyFrom(
        user_config_.custom_optimizers());
    config->set_meta_optimizer_iterations(
        user_config_.meta_optimizer_iterations());
    config->set_fail_on_optimizer_errors(
        user_config_.fail_on_optimizer_errors());
    config->set_disable_meta_optimizer(false);
  }

  // Puts bodies in place of calls, as TensorFlow's function optimizer would do
  // behind the first phase, if there is anything to rewrite in them: calls in
  // the graph of a session hide it. Calls that it leaves are left here too:
  // what is optimized apart may round in another way. `inlined`: the functions
  // of which no call is left.
  Status InlineCalls(Cluster* cluster, GrapplerItem* item,
                     std::set<std::string>* inlined) const {
    const auto& options = config_proto_.graph_options().rewrite_options();
    std::set<std::string> called;
    if (!Runs("function", options.function_optimization()) ||
        !CallsHideTrigger(item->graph, &called)) {
      return tensorflow::OkStatus();
    }
    DropUnreached(item);
    called.clear();
    if (!CallsHideTrigger(item->graph, &called)) return tensorflow::OkStatus();
    GrapplerItem inlining(*item);
    inlining.optimization_options().optimize_function_library = false;
    ConfigProto config = config_proto_;
    auto* only = config.mutable_graph_options()->mutable_rewrite_options();
    only->Clear();
    only->add_optimizers("function");
    only->set_function_optimization(options.function_optimization());
    only->set_meta_optimizer_iterations(RewriterConfig::ONE);
    only->set_min_graph_nodes(-1);
    GraphDef graph;
    TF_RETURN_IF_ERROR(tensorflow::grappler::RunMetaOptimizer(
        std::move(inlining), config, /*cpu_device=*/nullptr, cluster, &graph));
    item->graph.Swap(&graph);
    std::set<std::string> left;
    CallsHideTrigger(item->graph, &left);
    std::set_difference(called.begin(), called.end(), left.begin(), left.end(),
                        std::inserter(*inlined, inlined->end()));
    return tensorflow::OkStatus();
  }

  // Drops nodes that TensorFlow's pruner would drop in front of the function
  // optimizer, which asks what waits for a call.
  static void DropUnreached(GrapplerItem* item) {
    if (item->fetch.empty()) return;
    std::vector<std::string> names;
    for (const auto& name : item->NodesToPreserve()) {
      names.push_back(NodeName(name));
    }
    AddEffects(*item, &names);
    const std::vector<bool> needed = NeededBy(item->graph, names);
    GraphDef kept;
    for (int i = 0; i < item->graph.node_size(); ++i) {
      if (needed[i]) kept.add_node()->Swap(item->graph.mutable_node(i));
    }
    item->graph.mutable_node()->Swap(kept.mutable_node());
  }

  // Whether a function that is called, through others too, and that may be
  // inlined holds an op that a pass of the first phase may rewrite. `called`:
  // all such functions.
  static bool CallsHideTrigger(const GraphDef& graph,
                               std::set<std::string>* called) {
    if (graph.library().function().empty()) return false;
    std::map<std::string, const tensorflow::FunctionDef*> functions;
    for (const auto& function : graph.library().function()) {
      functions[function.signature().name()] = &function;
    }
    std::vector<const tensorflow::FunctionDef*> pending;
    const auto call = [&](const std::string& name) {
      const auto found = functions.find(name);
      if (found == functions.end()) return;
      const auto& attrs = found->second->attr();
      for (const char* stays : {"_noinline", "_XlaMustCompile"}) {
        const auto attr = attrs.find(stays);
        if (attr != attrs.end() && attr->second.b()) return;
      }
      pending.push_back(found->second);
      called->insert(name);
      functions.erase(found);
    };
    const auto follow = [&](const tensorflow::NodeDef& node) {
      call(node.op());
      if (FunctionalOps().count(node.op()) == 0) return;
      for (const auto& attr : node.attr()) {
        call(attr.second.func().name());
        for (const auto& function : attr.second.list().func()) {
          call(function.name());
        }
      }
    };
    bool hide = false;
    for (const auto& node : graph.node()) follow(node);
    while (!pending.empty()) {
      const auto* function = pending.back();
      pending.pop_back();
      for (const auto& node : function->node_def()) {
        hide = hide || TriggerOps(0)->count(node.op()) > 0;
        follow(node);
      }
    }
    return hide;
  }

  Status Rewrite(int phase, int64_t run, const std::set<std::string>& inlined,
                 GrapplerItem* item) const {
    const RewriteCallback rewrite = callback.load();
    if (rewrite == nullptr) {
      return errors::Internal(
          "picasso: the Python pipeline is not installed. Import picasso_tf "
          "in the process that runs the graph.");
    }
    GraphDef* graph = &item->graph;
    if (!HasTrigger(phase, *graph)) return tensorflow::OkStatus();
    std::set<std::string> feeds, fetches, keep, preserve;
    for (const auto& feed : item->feed) feeds.insert(NodeName(feed.first));
    for (const auto& name : item->fetch) fetches.insert(NodeName(name));
    for (const auto& name : item->keep_ops) {
      if (fetches.count(name) == 0) keep.insert(name);
    }
    for (const auto& tensor : item->NodesToPreserve()) {
      const std::string name = NodeName(tensor);
      if (keep.count(name) == 0 && feeds.count(name) == 0) {
        preserve.insert(name);
      }
    }
    preserve.insert(fetches.begin(), fetches.end());
    std::string serialized;
    if (!SerializeNeeded(phase, item, {&feeds, &preserve, &keep},
                         &serialized)) {
      return errors::InvalidArgument(
          "picasso: the graph is too large to serialise.");
    }
    if (serialized.empty()) return tensorflow::OkStatus();
    std::string answer;
    const int reply = rewrite(
        serialized.data(), serialized.size(), Join(feeds).c_str(),
        Join(preserve).c_str(), Join(keep).c_str(),
        item->optimization_options().allow_pruning_stateful_and_dataset_ops,
        Runs("arithmetic", config_proto_.graph_options()
                               .rewrite_options()
                               .arithmetic_optimization()),
        phase, run, item->id.c_str(), Join(inlined).c_str(), options_.c_str(),
        &answer);
    if (reply == kUnchanged) return tensorflow::OkStatus();
    if (reply == kFailed) return errors::Internal("picasso: ", answer);
    GraphDef result;
    if (!result.ParseFromString(answer)) {
      return errors::Internal("picasso: the pipeline returned no GraphDef.");
    }
    graph->mutable_node()->Swap(result.mutable_node());
    DropMissing(*graph, &item->keep_ops);
    return tensorflow::OkStatus();
  }

  // The nodes without the library, and without those that the named ones do not
  // need: a session's graph holds all that was ever built, and packs must not
  // wait for the feeds of what does not run. Empty if no trigger is left.
  static bool SerializeNeeded(
      int phase, GrapplerItem* item,
      const std::vector<const std::set<std::string>*>& named,
      std::string* serialized) {
    GraphDef* graph = &item->graph;
    std::vector<std::string> names;
    for (const auto* some : named) {
      names.insert(names.end(), some->begin(), some->end());
    }
    // Without fetches all of the graph runs.
    const bool all = named[1]->empty() && named[2]->empty();
    std::vector<bool> needed(graph->node_size(), true);
    if (!all) {
      AddEffects(*item, &names);
      needed = NeededBy(*graph, names);
    }
    GraphDef nodes;  // lent to, for a moment
    for (int i = 0; i < graph->node_size(); ++i) {
      if (needed[i]) {
        nodes.mutable_node()->UnsafeArenaAddAllocated(graph->mutable_node(i));
      }
    }
    const bool small_enough =
        !HasTrigger(phase, nodes) || nodes.SerializeToString(serialized);
    while (nodes.node_size() > 0) {
      nodes.mutable_node()->UnsafeArenaReleaseLast();
    }
    return small_enough;
  }

  static bool HasTrigger(int phase, const GraphDef& graph) {
    const auto& triggers = *TriggerOps(phase);
    for (const auto& node : graph.node()) {
      if (triggers.count(node.op()) > 0) return true;
    }
    return false;
  }

  // Forgets ops that had to run and that a pack now does the work of.
  static void DropMissing(const GraphDef& graph,
                          std::vector<std::string>* names) {
    std::set<std::string> present;
    for (const auto& node : graph.node()) present.insert(node.name());
    names->erase(std::remove_if(names->begin(), names->end(),
                                [&](const std::string& name) {
                                  return present.count(name) == 0;
                                }),
                 names->end());
  }

  std::string options_;         // JSON, picasso_tf.Options
  RewriterConfig user_config_;  // the fields that were overwritten
};

REGISTER_GRAPH_OPTIMIZER_AS(PicassoOptimizer, "picasso");

}  // namespace picasso

extern "C" {

// Installs the Python pipeline. before, after: op types of the two phases,
// joined by newlines; graphs without any of them never reach that phase.
__attribute__((visibility("default"))) void PicassoInstall(
    picasso::RewriteCallback rewrite, const char* before, const char* after) {
  picasso::SplitInto(before, picasso::TriggerOps(0));
  picasso::SplitInto(after, picasso::TriggerOps(1));
  picasso::callback.store(rewrite);
}

__attribute__((visibility("default"))) void PicassoReply(void* reply,
                                                         const char* data,
                                                         int64_t size) {
  static_cast<std::string*>(reply)->assign(data, size);
}

}  // extern "C"
