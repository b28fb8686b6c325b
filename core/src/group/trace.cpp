// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "liveness/process_identity.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {

void Group::set_calls(std::function<std::string()> calls) {
  const std::lock_guard lock(mutex_);
  calls_ = std::move(calls);
}

void Group::show_call(const bp_call& call) {
  const Presence presence(*this);
  if (state_.load() == State::kDestroyed || agents_.empty()) return;
  if (const bp_calls_api* const layer = agents_.front()->calls()) layer->ended(layer->ctx, &call);
}

void Group::show_metrics(const std::string& worker, Metrics metrics) {
  const Presence presence(*this);
  if (state_.load() == State::kDestroyed || agents_.empty()) return;
  const bp_calls_api* const layer = agents_.front()->calls();
  if (layer == nullptr || layer->joined == nullptr) return;
  metrics_ = std::move(metrics);
  worker_ = worker;
  const auto visit = [](void* ctx, void (*each)(void* to, const bp_metric* metric), void* to) {
    guarded(nullptr,
            [=] { static_cast<Group*>(ctx)->metrics_([each, to](const bp_metric& metric) { each(to, &metric); }); });
  };
  shown_metrics_ = {sizeof(bp_metrics_api), 0, this, worker_.c_str(), visit};
  layer->joined(layer->ctx, &shown_metrics_);
}

std::string Group::trace_json(bool all) const {
  if (all) {
    std::vector<std::weak_ptr<Group>> children;
    {
      const std::lock_guard lock(mutex_);
      children = children_;
    }
    std::string text(1, '[');
    text += trace_json();
    for (const auto& child : children) {
      const std::shared_ptr<Group> group = child.lock();
      if (!group || !group->member()) continue;
      const std::string more = group->trace_json(true);
      text.append(",\n").append(more, 1, more.size() - 2);
    }
    text += ']';
    return text;
  }
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const Recorder::Entry& entry : recorder_.entries()) {
    nlohmann::ordered_json item = {{"number", entry.number}, {"op", op_name(entry.kind)}, {"seq", entry.seq}};
    if (entry.kind != BP_BARRIER) {
      item["dtype"] = dtype_name(entry.dtype);
      item["count"] = entry.count;
    }
    if (reduces(entry.kind)) item["reduce_op"] = reduce_op_name(entry.reduce_op);
    if (!collective(entry.kind)) {
      item["peer"] = entry.rank;
      item["tag"] = entry.tag;
    } else if (entry.rank >= 0) {
      item["root"] = entry.rank;
    }
    item["state"] = entry.end_ns == 0 ? "in flight" : entry.status == BP_OK ? "done" : "failed";
    item["status"] = entry.status;
    item["begin_ns"] = entry.begin_ns;
    item["end_ns"] = entry.end_ns;
    entries.push_back(std::move(item));
  }
  std::function<std::string()> calls;
  {
    const std::lock_guard lock(mutex_);
    calls = calls_;
  }
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t wall_ns = static_cast<int64_t>(wall.tv_sec) * 1000000000 + wall.tv_nsec;
  nlohmann::ordered_json trace{{"group", config_.name},
                               {"key", config_.key},
                               {"rank", config_.rank},
                               {"world_size", config_.world_size},
                               {"global_ranks", config_.global_ranks},
                               {"identity", process_identity()},
                               {"backend", backend_id(BP_HOST)},
                               {"broken", cause()},
                               {"clock", {{"monotonic_ns", monotonic_ns()}, {"realtime_ns", wall_ns}}},
                               {"entries", std::move(entries)}};
  if (calls) trace.update(nlohmann::ordered_json::parse(calls()));
  return trace.dump();
}

}  // namespace backplane::core
