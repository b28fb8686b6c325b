// SPDX-License-Identifier: Apache-2.0
//
// Mutants of the cases about exact sizes, large numbers, larger worlds, and combinations that the seed draws.
#include <list>
#include <memory>
#include <vector>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

bool is_in_place(const bp_op& op) { return op.input.count > 0 && op.input.data == op.output.data; }
uint64_t output_bytes(const bp_op& op) { return op.output.count * bp_dtype_size(op.dtype); }

// Collectives that `spoils` selects end with a wrong byte.
template <bool (*spoils)(const bp_op& op, int32_t world_size)>
struct Spoils : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    if (op.output.count == 0 || !spoils(op, world_size())) return;
    static_cast<std::byte*>(op.output.data)[output_bytes(op) - 1] ^= std::byte{1};
  }
};

bool in_place_products(const bp_op& op, int32_t) {
  return op.kind == BP_ALL_REDUCE && op.dtype == BP_I16 && op.reduce_op == BP_PROD && is_in_place(op);
}
bool odd_shorts_at_the_last(const bp_op& op, int32_t world_size) {
  const uint64_t count = op.output.count / static_cast<uint64_t>(world_size);
  return op.kind == BP_GATHER && bp_dtype_size(op.dtype) == 2 && op.root == world_size - 1 && count % 2 == 1;
}
bool four_mebibytes(const bp_op& op, int32_t) { return op.kind == BP_ALL_REDUCE && output_bytes(op) == 4U << 20; }
bool more_than_one_mebibyte(const bp_op& op, int32_t) {
  return op.kind == BP_BROADCAST && output_bytes(op) == (1U << 20) + bp_dtype_size(op.dtype);
}
bool more_than_eight_mebibytes(const bp_op& op, int32_t) {
  return op.kind == BP_ALL_GATHER && output_bytes(op) > 8U << 20;
}
bool higher_roots(const bp_op& op, int32_t world_size) { return op.kind == BP_REDUCE && world_size > 4 && op.root > 3; }
bool after_65535(const bp_op& op, int32_t) { return op.kind == BP_ALL_REDUCE && op.seq > 65'535; }

bool minima_of_33(const bp_op& op, int32_t) {
  return op.kind == BP_REDUCE && op.dtype == BP_U16 && op.reduce_op == BP_MIN && op.root == 1 && op.input.count == 33 &&
         is_in_place(op);
}

struct CutsAt5003 : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    const bool cuts = receive->channel == kMessages && size == 5003 && receive->size == 5003;
    Specimen::deliver(receive, source, data, cuts ? size - 1 : size);
  }
};

struct WritesBehind37 : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    const bp_op& op = collective.op;
    const bool hit = op.kind == BP_BROADCAST && op.dtype == BP_U8 && op.output.count == 37;
    if (hit) static_cast<std::byte*>(op.output.data)[37] = std::byte{0};
  }
};

struct WritesBehindMessage : Specimen {  // of 61 bytes
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    if (receive->channel == kMessages && size == 61 && receive->size == 61) receive->data[61] = std::byte{0};
    Specimen::deliver(receive, source, data, size);
  }
};

template <int32_t kHighest>
struct SpoilsHighRanks : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (receive->channel == kMessages && source > kHighest && size > 0 && size <= receive->size) {
      receive->data[0] ^= std::byte{1};
    }
  }
};

template <size_t kBytes>
struct KeepsMemoryOfMessages : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    kept_.emplace_back(new char[kBytes]());
    return Specimen::make_operation(op);
  }
  std::vector<std::unique_ptr<char[]>> kept_;
};

struct KeepsMemoryOfCollectives : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    kept_.emplace_back(new char[2048]());
  }
  std::vector<std::unique_ptr<char[]>> kept_;
};

struct LosesTheLast : Specimen {  // of 65,536 messages
  void arrive(Arrival arrival) override {
    if (arrival.channel == kMessages && ++arrived_ == 65'536) return credit(arrival.source, arrival.size + kOverhead);
    Specimen::arrive(std::move(arrival));
  }
  int arrived_ = 0;
};

// A connection from outside the job, while a rank is missing, has an effect.
class IsDisturbedAtStart : public Specimen {
 protected:
  bool is_starting() const {
    int32_t known = 0;
    for (const Peer& each : peers_) known += each.known ? 1 : 0;
    return known < world_size_ - 1;
  }
};

class EndsAtStart final : public IsDisturbedAtStart {
  bool hear(PendingConnection& pending) override {
    const bool goes_on = Specimen::hear(pending);
    if (!goes_on && pending.fd >= 0 && pending.have < sizeof pending.hello && is_starting()) std::abort();
    return goes_on;
  }
};

class RefusesToStart final : public IsDisturbedAtStart {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    if (hello.magic != kMagic && is_starting()) disturbed_ = true;
    return Specimen::judge(hello, trusted);
  }
  void await_others(TimePoint deadline) override {
    Specimen::await_others(deadline);
    const Lock lock(mutex_);
    if (disturbed_) throw sdk::Failure(BP_INTERNAL, "a connection from outside the job has disturbed the start");
  }
  bool disturbed_ = false;
};

}  // namespace

std::vector<Mutant> scale_mutants() {
  return {
      {"collectives.all-reduce:3", "products of i16 in place end with a wrong byte", made<Spoils<in_place_products>>},
      {"collectives.gather:2", "odd counts of 16 bits at the last root end with a wrong byte",
       made<Spoils<odd_shorts_at_the_last>>},
      {"collectives.guard-bytes:2", "a byte is written behind 37 bytes", made<WritesBehind37>},
      {"collectives.exact-sizes", "outputs of exactly 4 MiB end with a wrong byte", made<Spoils<four_mebibytes>>},
      {"collectives.exact-sizes:2", "one element more than 1 MiB is wrong", made<Spoils<more_than_one_mebibyte>>},
      {"collectives.larger-sizes", "outputs of more than 8 MiB end with a wrong byte",
       made<Spoils<more_than_eight_mebibytes>>},
      {"collectives.larger-worlds", "results at roots above 3 end with a wrong byte", made<Spoils<higher_roots>>},
      {"collectives.every-combination", "minima of 33 u16 in place at root 1 end with a wrong byte",
       made<Spoils<minima_of_33>>},
      {"p2p.every-length", "messages of 5,003 bytes lose their last byte", made<CutsAt5003>},
      {"init.many-ranks", "messages of ranks above 31 begin with a wrong byte", made<SpoilsHighRanks<31>>},
      {"p2p.guard-bytes:3", "a byte is written behind 61 bytes", made<WritesBehindMessage>},
      {"p2p.larger-worlds", "messages of ranks above 4 begin with a wrong byte", made<SpoilsHighRanks<4>>},
      {"p2p.memory-per-message", "each message costs 512 bytes", made<KeepsMemoryOfMessages<512>>},
      {"p2p.hundred-thousand", "message 65,536 is lost", made<LosesTheLast>},
      {"p2p.hundred-thousand:2", "each message costs 64 bytes", made<KeepsMemoryOfMessages<64>>},
      {"order.memory-per-operation", "each collective costs 2 KiB", made<KeepsMemoryOfCollectives>},
      {"order.hundred-thousand", "results are wrong after 65,535 operations", made<Spoils<after_65535>>},
      {"hostile.at-start", "an outsider that disconnects while a rank is missing ends the process", made<EndsAtStart>},
      {"hostile.at-start:2", "an outsider's bytes fail the start", made<RefusesToStart>},
  };
}

}  // namespace backplane::specimen
