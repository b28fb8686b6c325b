// SPDX-License-Identifier: Apache-2.0
#include "group/call_observer.hpp"

#include <utility>

namespace backplane::core {

void CallObserver::ended(const bp_call& call) {
  const UseGuard use(state_);
  if (const bp_calls_api* const observer = layer()) observer->ended(observer->ctx, &call);
}

void CallObserver::set_metrics(const std::string& worker, Metrics metrics) {
  const UseGuard use(state_);
  const bp_calls_api* const observer = layer();
  if (observer == nullptr || observer->joined == nullptr) return;
  metrics_ = std::move(metrics);
  worker_ = worker;
  const auto visit = [](void* ctx, void (*each)(void* to, const bp_metric* metric), void* to) {
    guarded(nullptr, [=] {
      static_cast<CallObserver*>(ctx)->metrics_([each, to](const bp_metric& metric) { each(to, &metric); });
    });
  };
  table_ = {sizeof(bp_metrics_api), 0, this, worker_.c_str(), visit};
  observer->joined(observer->ctx, &table_);
}

}  // namespace backplane::core
