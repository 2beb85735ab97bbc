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
#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"
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

// graph: a serialised GraphDef without library; names are joined by newlines.
// `preserve` may be fetched, `keep` only has to run; with may_prune, nothing
// else that these do not need has to run. phase: 0 before TensorFlow's own
// optimizers, 1 behind them; both calls for one graph have the same `run`. The
// answer, a GraphDef or an error message, is given by PicassoReply.
using RewriteCallback = int (*)(const char* graph, int64_t graph_size,
                                const char* feeds, const char* preserve,
                                const char* keep, int may_prune, int phase,
                                int64_t run, const char* item,
                                const char* options, void* reply);

namespace {

std::atomic<RewriteCallback> callback{nullptr};

constexpr int kPhases = 2;

// Op types that a pass of a phase may rewrite; set once, before the callback.
std::set<std::string>* TriggerOps(int phase) {
  static auto* ops = new std::set<std::string>[kPhases];
  return &ops[phase];
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
    TF_RETURN_IF_ERROR(Rewrite(0, run, &rewritten));
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
    TF_RETURN_IF_ERROR(Rewrite(1, run, &rewritten));
    optimized->Swap(&rewritten.graph);
    return tensorflow::OkStatus();
  }

 private:
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

  Status Rewrite(int phase, int64_t run, GrapplerItem* item) const {
    const RewriteCallback rewrite = callback.load();
    if (rewrite == nullptr) {
      return errors::Internal(
          "picasso: the Python pipeline is not installed. Import picasso_tf "
          "in the process that runs the graph.");
    }
    GraphDef* graph = &item->graph;
    if (!HasTrigger(phase, *graph)) return tensorflow::OkStatus();

    GraphDef nodes;  // the library stays here; Python needs the nodes alone
    nodes.mutable_node()->Swap(graph->mutable_node());
    std::string serialized;
    const bool small_enough = nodes.SerializeToString(&serialized);
    graph->mutable_node()->Swap(nodes.mutable_node());
    if (!small_enough) {
      return errors::InvalidArgument(
          "picasso: the graph is too large to serialise.");
    }
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
    std::string answer;
    const int reply = rewrite(
        serialized.data(), serialized.size(), Join(feeds).c_str(),
        Join(preserve).c_str(), Join(keep).c_str(),
        item->optimization_options().allow_pruning_stateful_and_dataset_ops,
        phase, run, item->id.c_str(), options_.c_str(), &answer);
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
