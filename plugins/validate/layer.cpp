// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "checksum.hpp"
#include "floats.hpp"
#include "regions.hpp"

namespace backplane::validate {
namespace {

enum class Policy { kOff, kWarn, kError };

Policy policy_of(const std::string& text) {
  return text == "off" ? Policy::kOff : text == "warn" ? Policy::kWarn : Policy::kError;
}

// "all_reduce #5", "send #7 to rank 1". A message that the core sends for a collective has the collective's number.
std::string name_of(const bp_op& op) {
  std::string name = fmt::format("{} #{}", sdk::op_name(op.kind), op.seq);
  if (op.kind != BP_SEND && op.kind != BP_RECV) return name;
  if ((op.tag & BP_TAG_INTERNAL) != 0) {
    name = fmt::format("the {} of collective #{}", sdk::op_name(op.kind), op.seq);
  }
  if (op.message != nullptr) return name + " of a probed message";
  if (op.peer == BP_ANY_SOURCE) return name + " from any rank";
  return fmt::format("{} {} rank {}", name, op.kind == BP_SEND ? "to" : "from", op.peer);
}

class ValidateLayer final : public sdk::Layer {
 public:
  explicit ValidateLayer(const sdk::Context& context)
      : Layer(context),
        host_(context.host),
        group_(context.name),
        world_size_(context.world_size),
        input_(policy_of(context.options.text("input"))),
        busy_(policy_of(context.options.text("busy"))),
        nan_(policy_of(context.options.text("nan"))) {}

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    std::unique_ptr<CheckedWork> checked;
    try {
      checked = std::make_unique<CheckedWork>(*this, op);
      checked->begin(op);
    } catch (...) {
      inner().drop(op);
      throw;
    }
    bp_op forwarded = sdk::known_part(op);
    if (op.kind == BP_RECV && op.result == nullptr) forwarded.result = &checked->result;
    checked->inner_work = inner().submit(forwarded);
    if (checked->inner_work != nullptr) return checked;
    checked->end(false);
    return nullptr;
  }

 private:
  // An operation that is being checked, and its Work.
  class CheckedWork final : public sdk::Work {
   public:
    CheckedWork(ValidateLayer& layer, const bp_op& op)
        : layer_(layer), op_(sdk::known_part(op)), id_(layer.next_id_.fetch_add(1)) {
      if (op.result == nullptr) op_.result = &result;
      op_.in_counts = op_.in_displs = op_.out_counts = op_.out_displs = nullptr;  // valid only in submit
      op_.scalar = nullptr;
    }
    ~CheckedWork() override { layer_.regions_.release(id_); }
    CheckedWork(const CheckedWork&) = delete;
    CheckedWork& operator=(const CheckedWork&) = delete;

    // Acquires and checksums the buffers. Throws if they are in use.
    void begin(const bp_op& op) {
      Footprint footprint(op, layer_.world_size_);
      if (layer_.busy_.policy != Policy::kOff) {
        const bool force = layer_.busy_.policy == Policy::kWarn;
        const std::string problem = layer_.regions_.take(id_, footprint, name_of(op), force);
        if (!problem.empty()) layer_.report(layer_.busy_, op_, problem);
      }
      if (layer_.nan_.policy != Policy::kOff && is_floating(op.dtype)) outputs_ = footprint.writes;
      if (layer_.input_.policy != Policy::kOff) inputs_.emplace(std::move(footprint.reads));
    }

    bool wait(int64_t timeout_ns) override {
      if (failure_) throw sdk::Failure(*failure_);
      if (ended_) return true;
      try {
        if (!inner_work->wait(timeout_ns)) return false;
      } catch (const sdk::Failure& failure) {  // the buffers of a failed operation are undefined
        failure_.emplace(failure);
        layer_.regions_.release(id_);
        throw;
      }
      end(true);
      return true;
    }
    void cancel() noexcept override { inner_work->cancel(); }
    bool on_end(sdk::Notice notice) override { return inner_work->on_end(notice); }
    bool wait_on_stream(void* stream, int64_t timeout_ns) override {
      return inner_work->wait_on_stream(stream, timeout_ns);
    }

    // Checks the buffers of an operation that is done. `may_be_freed`: the operation ended after submit, so its buffers
    // may have been freed. Throws sdk::Failure if a check fails.
    void end(bool may_be_freed) {
      ended_ = true;
      layer_.regions_.release(id_);
      try {
        check_inputs(may_be_freed);
        check_outputs(may_be_freed);
      } catch (const sdk::Failure& failure) {
        failure_.emplace(failure);
        throw;
      }
    }

    std::unique_ptr<sdk::Work> inner_work;
    bp_result result = {sizeof(bp_result), -1, 0, 0};  // for a recv whose caller passed none

   private:
    void check_inputs(bool may_be_freed) const {
      const std::optional<Region> changed = inputs_ ? inputs_->changed(may_be_freed) : std::nullopt;
      if (!changed) return;
      const uintptr_t data = reinterpret_cast<uintptr_t>(op_.input.data);
      layer_.report(layer_.input_, op_,
                    fmt::format("the input was changed while in use, in its bytes {} to {}; the program may write to "
                                "it again when the operation has been waited for",
                                changed->begin - data, changed->end - 1 - data));
    }

    void check_outputs(bool may_be_freed) const {
      const uint64_t element = bp_dtype_size(op_.dtype);
      const uintptr_t data = reinterpret_cast<uintptr_t>(op_.output.data);
      NotFinite all;
      for (Region region : outputs_) {
        if (op_.kind == BP_RECV) region.end = std::min(region.end, region.begin + op_.result->bytes);
        if (region.begin >= region.end) continue;
        read_chunks(region, may_be_freed, [this, &all, element, data](const std::byte* bytes, const Region& chunk) {
          const NotFinite found = find_not_finite(op_.dtype, bytes, (chunk.end - chunk.begin) / element);
          if (found.count > 0 && all.count == 0) {
            all.first = found.first + (chunk.begin - data) / element;
            all.first_is_nan = found.first_is_nan;
          }
          all.count += found.count;
          return true;
        });
      }
      if (all.count == 0) return;
      layer_.report(layer_.nan_, op_,
                    fmt::format("the output ({}) has {} at element {}{}", sdk::dtype_name(op_.dtype),
                                all.first_is_nan ? "NaN" : "an infinity", all.first,
                                all.count == 1 ? "" : fmt::format(", the first of {} that are not finite", all.count)));
    }

    ValidateLayer& layer_;
    bp_op op_;  // without its counts and its scalar
    const uint64_t id_;
    std::optional<Fingerprint> inputs_;
    std::vector<Region> outputs_;  // to be checked
    bool ended_ = false;
    std::optional<sdk::Failure> failure_;
  };

  struct Check {
    explicit Check(Policy given) : policy(given) {}
    const Policy policy;
    base::LogLimit warnings;
  };

  void report(Check& check, const bp_op& op, const std::string& problem) {
    const std::string text = name_of(op) + ": " + problem;
    if (check.policy == Policy::kError) throw sdk::Failure(BP_INVALID, "validate: " + text);
    host_.log(check.warnings, BP_LOG_WARN, fmt::format("group '{}': {}", group_, text));
  }

  const sdk::Host host_;
  const std::string group_;
  const int32_t world_size_;
  Check input_;
  Check busy_;
  Check nan_;
  BusyRegions regions_;
  std::atomic<uint64_t> next_id_ = 0;
};

}  // namespace

std::unique_ptr<sdk::ProcessGroup> make_layer(const sdk::Context& context) {
  return std::make_unique<ValidateLayer>(context);
}

}  // namespace backplane::validate
