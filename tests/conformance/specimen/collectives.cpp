// SPDX-License-Identifier: Apache-2.0
//
// Native collectives: linear, over messages of their own channel, one after the other on one thread.
#include <algorithm>
#include <cstring>
#include <utility>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr uint64_t kTag = 0;  // collectives follow each other; messages of one pair keep their order

// One collective on this rank.
class Linear {
 public:
  Linear(Specimen& group, Collective& collective)
      : group_(group),
        collective_(collective),
        op_(collective.op),
        me_(group.rank()),
        world_(group.world_size()),
        size_(bp_dtype_size(op_.dtype)),
        in_(static_cast<std::byte*>(op_.input.data)),
        out_(static_cast<std::byte*>(op_.output.data)) {}

  void run() {
    switch (op_.kind) {
      case BP_BARRIER:
        gather_empty();
        return broadcast(nullptr, 0, 0);
      case BP_BROADCAST:
        if (me_ == op_.root) copy(out_, in_, op_.input.count);
        return broadcast(out_, op_.output.count, op_.root);
      case BP_REDUCE:
        return reduce(op_.root);
      case BP_ALL_REDUCE:
        reduce(0);
        return broadcast(out_, op_.output.count, 0);
      case BP_GATHER:
      case BP_GATHERV:
        return gather();
      case BP_SCATTER:
      case BP_SCATTERV:
        return scatter();
      case BP_ALL_GATHER:
      case BP_ALL_GATHERV:
        return all_gather();
      case BP_REDUCE_SCATTER:
      case BP_REDUCE_SCATTERV:
        return reduce_scatter();
      case BP_SCAN:
      case BP_EXSCAN:
        return scan(op_.kind == BP_SCAN ? me_ : me_ - 1);
      default:
        return all_to_all();
    }
  }

 private:
  struct Block {
    uint64_t begin;  // elements
    uint64_t count;
  };

  // Rank r's block of the side that has one for each rank; `each` elements unless it is a v-variant.
  static Block block(const uint64_t* counts, const uint64_t* displs, uint64_t each, int32_t r) {
    const auto i = static_cast<uint64_t>(r);
    return counts == nullptr ? Block{i * each, each} : Block{displs[i], counts[i]};
  }
  Block in_block(int32_t r) const {
    return block(op_.in_counts, op_.in_displs, op_.input.count / static_cast<uint64_t>(world_), r);
  }
  Block out_block(int32_t r) const {
    return block(op_.out_counts, op_.out_displs, op_.output.count / static_cast<uint64_t>(world_), r);
  }

  void copy(std::byte* target, const std::byte* source, uint64_t count) const {
    if (count > 0 && target != source) std::memcpy(target, source, count * size_);
  }
  void send(int32_t to, const std::byte* data, uint64_t count) {
    group_.post(collective_, true, to, const_cast<std::byte*>(data), count * size_);
  }
  void recv(int32_t from, std::byte* data, uint64_t count) {
    group_.post(collective_, false, from, data, count * size_);
  }
  void settle() { group_.await_posted(collective_); }

  // The other ranks.
  std::vector<int32_t> others() const {
    std::vector<int32_t> ranks;
    for (int32_t r = 0; r < world_; ++r) {
      if (r != me_) ranks.push_back(r);
    }
    if (group_.settings().descending) std::reverse(ranks.begin(), ranks.end());
    return ranks;
  }

  void gather_empty() {
    if (me_ != 0) {
      send(0, nullptr, 0);
    } else {
      for (const int32_t r : others()) recv(r, nullptr, 0);
    }
    settle();
  }

  void broadcast(std::byte* data, uint64_t count, int32_t root) {
    if (me_ != root) {
      recv(root, data, count);
    } else {
      for (const int32_t r : others()) send(r, data, count);
    }
    settle();
  }

  // This rank's contribution: premul_sum multiplies it.
  std::vector<std::byte> contribution(const std::byte* data, uint64_t count) {
    std::vector<std::byte> result(count * size_);
    copy(result.data(), data, count);
    if (op_.reduce_op != BP_PREMUL_SUM || count == 0) return result;
    std::vector<std::byte> factors(count * size_);
    for (uint64_t i = 0; i < count; ++i) copy(factors.data() + i * size_, static_cast<const std::byte*>(op_.scalar), 1);
    group_.combine(op_.dtype, BP_PROD, result.data(), result.data(), factors.data(), count);
    return result;
  }

  // Combines what all ranks have contributed, in the order of ranks, into `target`.
  void fold(std::byte* target, const std::vector<std::vector<std::byte>>& parts, uint64_t count) {
    std::vector<std::byte> sum = parts[0];
    for (size_t r = 1; r < parts.size() && count > 0; ++r) {
      group_.combine(op_.dtype, op_.reduce_op, sum.data(), sum.data(), parts[r].data(), count);
    }
    if (op_.reduce_op == BP_AVG) divide(op_.dtype, sum.data(), count, world_);
    copy(target, sum.data(), count);
  }

  void reduce(int32_t root) {
    const uint64_t count = op_.input.count;
    std::vector<std::vector<std::byte>> parts(static_cast<size_t>(world_));
    std::vector<std::byte>& mine = parts[static_cast<size_t>(me_)];
    mine = contribution(in_, count);
    if (me_ != root) {
      send(root, mine.data(), count);
      return settle();
    }
    for (const int32_t r : others()) parts[static_cast<size_t>(r)].resize(count * size_);
    for (const int32_t r : others()) recv(r, parts[static_cast<size_t>(r)].data(), count);
    settle();
    fold(out_, parts, count);
  }

  // Combines what the ranks 0 to `last` have contributed; each sends to all that come after it.
  void scan(int32_t last) {
    const uint64_t count = op_.input.count;
    const std::vector<std::byte> mine = contribution(in_, count);
    std::vector<std::vector<std::byte>> parts(static_cast<size_t>(last + 1));
    for (const int32_t r : others()) {
      if (r > me_) send(r, mine.data(), count);
      if (r > me_) continue;
      parts[static_cast<size_t>(r)].resize(count * size_);
      recv(r, parts[static_cast<size_t>(r)].data(), count);
    }
    settle();
    if (last == me_) parts.back() = mine;
    if (last >= 0) fold(out_, parts, count);
  }

  void gather() {
    if (me_ != op_.root) {
      send(op_.root, in_, op_.input.count);
      return settle();
    }
    for (const int32_t r : others()) recv(r, out_ + out_block(r).begin * size_, out_block(r).count);
    copy(out_ + out_block(me_).begin * size_, in_, op_.input.count);
    settle();
  }

  void scatter() {
    if (me_ != op_.root) {
      recv(op_.root, out_, op_.output.count);
      return settle();
    }
    for (const int32_t r : others()) send(r, in_ + in_block(r).begin * size_, in_block(r).count);
    copy(out_, in_ + in_block(me_).begin * size_, op_.output.count);
    settle();
  }

  void all_gather() {
    for (const int32_t r : others()) {
      send(r, in_, op_.input.count);
      recv(r, out_ + out_block(r).begin * size_, out_block(r).count);
    }
    copy(out_ + out_block(me_).begin * size_, in_, op_.input.count);
    settle();
  }

  void reduce_scatter() {
    std::vector<std::vector<std::byte>> mine(static_cast<size_t>(world_));
    std::vector<std::vector<std::byte>> parts(static_cast<size_t>(world_));
    const uint64_t count = op_.output.count;
    for (int32_t r = 0; r < world_; ++r) {
      mine[static_cast<size_t>(r)] = contribution(in_ + in_block(r).begin * size_, in_block(r).count);
    }
    for (const int32_t r : others()) parts[static_cast<size_t>(r)].resize(count * size_);
    for (const int32_t r : others()) {
      send(r, mine[static_cast<size_t>(r)].data(), in_block(r).count);
      recv(r, parts[static_cast<size_t>(r)].data(), count);
    }
    settle();
    parts[static_cast<size_t>(me_)] = std::move(mine[static_cast<size_t>(me_)]);
    fold(out_, parts, count);
  }

  void all_to_all() {
    std::vector<std::byte> input(op_.input.count * size_);  // it may be the output as well
    copy(input.data(), in_, op_.input.count);
    for (const int32_t r : others()) {
      send(r, input.data() + in_block(r).begin * size_, in_block(r).count);
      recv(r, out_ + out_block(r).begin * size_, out_block(r).count);
    }
    copy(out_ + out_block(me_).begin * size_, input.data() + in_block(me_).begin * size_, in_block(me_).count);
    settle();
  }

  Specimen& group_;
  Collective& collective_;
  const bp_op& op_;
  const int32_t me_;
  const int32_t world_;
  const uint64_t size_;  // bytes of one element
  std::byte* const in_;
  std::byte* const out_;
};

}  // namespace

void Specimen::run_collective(Collective& collective) { Linear(*this, collective).run(); }

void Specimen::combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                       uint64_t count) {
  host_->combine(dtype, reduce_op, out, left, right, count);
}

void Specimen::post(Collective& collective, bool sends, int32_t to, void* data, uint64_t size) {
  const Lock lock(mutex_);
  require_alive();
  if (collective.given_up) throw sdk::Failure(*collective.given_up);
  auto operation = std::make_shared<Operation>();
  operation->sends = sends;
  operation->peer = to;
  operation->channel = kCollectives;
  operation->tag = kTag;
  operation->id = next_id_++;
  operation->data = static_cast<std::byte*>(data);
  operation->size = size;
  collective.posted.push_back(operation);
  if (sends) {
    submit_send(operation);
  } else {
    submit_receive(operation);
  }
}

// Waits for all of them; the first failure of one ends the others as well.
void Specimen::await_posted(Collective& collective) {
  Lock lock(mutex_);
  std::optional<sdk::Failure> failure;
  for (const OperationPtr& each : collective.posted) {
    changed_.wait(lock, [&each] { return each->done; });
    if (!each->failure || failure) continue;
    failure = each->failure;
    for (const OperationPtr& other : collective.posted) give_up(other, *failure);
  }
  collective.posted.clear();
  if (failure) throw sdk::Failure(*failure);
}

void Specimen::give_up(Collective& collective, const sdk::Failure& why) {
  const auto queued = std::find_if(collectives_.begin(), collectives_.end(),
                                   [&collective](const CollectivePtr& each) { return each.get() == &collective; });
  if (queued != collectives_.end()) {
    const CollectivePtr kept = *queued;
    collectives_.erase(queued);
    return fail(*kept, why);
  }
  collective.given_up.emplace(why);
  for (const OperationPtr& each : collective.posted) give_up(each, why);
}

void Specimen::work() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !collectives_.empty(); });
    if (collectives_.empty()) return;
    const CollectivePtr collective = collectives_.front();
    collectives_.pop_front();
    changed_.wait(lock, [this, &collective] { return stopping_ || aborted_ || all_done(collective->after); });
    lock.unlock();
    bp_error err;
    bp_error_init(&err);
    const int32_t status = sdk::guarded(&err, [this, &collective] {
      run_collective(*collective);
      return BP_OK;
    });
    lock.lock();
    for (const OperationPtr& each : collective->posted) give_up(each, sdk::Failure(err));
    collective->posted.clear();
    if (status == BP_OK) {
      finish(*collective);
    } else {
      const std::string text = std::string(err.text) + " (" + operation_name(collective->op.kind) + ")";
      fail(*collective, sdk::Failure(err.status, text, err.peer_rank, err.native_code));
    }
  }
}

}  // namespace backplane::specimen
