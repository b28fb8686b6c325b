// SPDX-License-Identifier: Apache-2.0
#include "order.hpp"

namespace backplane::conformance {

std::vector<uint32_t> collectives_or_none(Collectives& group) {
  std::vector<uint32_t> ops;
  for (uint32_t op = 0; op < BP_SEND; ++op) {
    if (group.native(op) != nullptr) ops.push_back(op);
  }
  return ops;
}

Step::Step(Collectives& group, const std::vector<uint32_t>& ops, uint64_t number, uint64_t count)
    : group_(group), number_(number) {
  Agent& agent = group.agent();
  if (ops.empty()) {
    output_ = Guarded(count);
    input_ = Guarded(count);
    fill_pattern(output_.data(), count, message_name(agent.rank(), 0, 0, number));
    return;
  }
  shape_ = usual_shape(*group.native(ops[number % ops.size()]), count);
  shape_.root = static_cast<int32_t>(number % static_cast<uint64_t>(agent.size()));
  shape_.name = number;
  call_ = std::make_unique<Call>(shape_, agent.rank(), agent.size());
}

void Step::submit() {
  if (call_) {
    pending_.push_back(group_.submit(*call_));
    return;
  }
  Agent& agent = group_.agent();
  const int32_t size = agent.size();
  const uint64_t tag = 1;
  bp_op receive = recv_op((agent.rank() + size - 1) % size, tag, input_.data(), input_.size());
  bp_op send = send_op((agent.rank() + 1) % size, tag, output_.data(), output_.size());
  receive.timeout_ns = send.timeout_ns = group_.enough();
  pending_.push_back(agent.submit(receive));
  pending_.push_back(agent.submit(send));
}

bool Step::poll(Nanoseconds timeout) {
  bool over = true;
  for (Pending& each : pending_) {
    const Outcome outcome = each.wait(timeout);
    group_.rank().require(outcome.ok() || outcome.status == BP_AGAIN, fmt::format("step {} succeeds", number_),
                          outcome.text());
    over = over && outcome.ok();
  }
  return over;
}

void Step::finish() {
  if (call_) return group_.finish(pending_.front(), *call_, shape_);
  const Nanoseconds end = now() + group_.enough();
  while (!poll(std::max<Nanoseconds>(0, end - now()))) {
    group_.rank().require(now() < end, fmt::format("step {} ends in time", number_), "it is still in flight");
  }
  for (Pending& each : pending_) each.release();
  pending_.clear();
  const int32_t size = group_.agent().size();
  const int32_t from = (group_.agent().rank() + size - 1) % size;
  const int64_t wrong = first_wrong_byte(input_.data(), input_.size(), message_name(from, 0, 0, number_));
  group_.rank().require(wrong < 0, fmt::format("the message of step {}", number_),
                        fmt::format("the first wrong byte is at {}", wrong));
}

}  // namespace backplane::conformance
