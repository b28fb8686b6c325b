// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

bool is_message(const Operation& operation) { return operation.channel == kMessages; }

struct DropsLastByte : Specimen {  // of 2^8 + 1
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, is_message(*receive) && size == 257 ? 256 : size);
  }
};

struct IgnoresEmpty : Specimen {
  void arrive(Arrival arrival) override {
    if (arrival.channel == kMessages && arrival.size == 0) return;
    Specimen::arrive(std::move(arrival));
  }
};

struct ForgetsItself : Specimen {  // takes a message to the rank itself for one of its neighbour
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (source == rank() && receive->result != nullptr) receive->result->source = (source + 1) % (world_size() + 1);
  }
};

struct WritesBehind : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    if (is_message(*receive) && size == 1021 && receive->size == 1021) receive->data[size] = std::byte{0};
    Specimen::deliver(receive, source, data, size);
  }
};

struct WritesBefore : Specimen {
  void on_message(int32_t from) override {
    const OperationPtr receive = peer(from).into;
    if (receive && is_message(*receive) && receive->size == 65'537) receive->data[-1] = std::byte{0};
    Specimen::on_message(from);
  }
};

struct ChangesInput : Specimen {
  void submit_send(const OperationPtr& send) override {
    Specimen::submit_send(send);
    if (is_message(*send) && send->size == 77) send->data[76] ^= std::byte{1};
  }
};

struct DoneTooEarly : Specimen {  // a message that waits for its recv is read later from the user's buffer
  void submit_send(const OperationPtr& send) override {
    Specimen::submit_send(send);
    if (is_message(*send) && send->size == 200'000) finish(*send);
  }
};

struct CountsElements : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    if (op.kind == BP_RECV && op.dtype == BP_F64) operation->size = op.output.count;
    return operation;
  }
};

struct SpoilsLarge : Specimen {
  void on_message(int32_t from) override {
    const OperationPtr receive = peer(from).into;
    if (receive && is_message(*receive) && receive->size > (5U << 20) && receive->size < (8U << 20)) {
      receive->data[receive->size - 1] ^= std::byte{1};
    }
    Specimen::on_message(from);
  }
};

struct ThirtyTwoBits : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    if (operation->sends) operation->size &= 0x7FFFFFFF;
    return operation;
  }
};

struct ReportsNoSize : Specimen {  // of a message that is too long
  void truncated(const OperationPtr& receive, int32_t source, uint64_t size) override {
    Specimen::truncated(receive, source, std::min(size, receive->size));
  }
};

struct CutsSilently : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, is_message(*receive) ? std::min(size, receive->size) : size);
  }
};

struct BreaksWhenTooLong : Specimen {  // the group does not survive a message that is too long
  void truncated(const OperationPtr& receive, int32_t source, uint64_t size) override {
    Specimen::truncated(receive, source, size);
    if (receive->size == 20 && source != rank()) break_off(source, "a message was too long");
  }
};

struct TakesMemoryFirst : Specimen {  // for a message that is only announced
  void match(const OperationPtr& receive, Arrival arrival) override {
    try {
      if (!arrival.eager && !arrival.local_send) std::vector<std::byte>().reserve(arrival.size);
    } catch (const std::bad_alloc&) {
      return fail(*receive, sdk::Failure(BP_RESOURCE, "no memory for a message", arrival.source));
    }
    Specimen::match(receive, std::move(arrival));
  }
};

struct ReportsTooLongLast : Specimen {  // when all bytes of the message have come
  void match(const OperationPtr& receive, Arrival arrival) override {
    if (arrival.eager || arrival.local_send || arrival.size <= receive->size) {
      return Specimen::match(receive, std::move(arrival));
    }
    receive->got_tag = arrival.tag;
    late_[receive->id] = receive;
    enqueue(arrival.source, {kReady, arrival.channel, 0, 0, arrival.remote_id, receive->id});
  }
  void on_message(int32_t from) override {
    const Frame frame = peer(from).frame;
    Specimen::on_message(from);
    const auto found = late_.find(frame.other);
    if (frame.kind != kData || found == late_.end()) return;
    if (!found->second->done) truncated(found->second, from, frame.size);
    late_.erase(found);
  }
  std::map<uint64_t, OperationPtr> late_;
};

struct ReportsRoom : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (receive->result != nullptr && size > 0) receive->result->bytes = receive->size;
  }
};

struct ThirtyTwoBitTags : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    operation->tag &= 0xFFFFFFFF;
    return operation;
  }
};

struct ByteTags : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    if (operation->tag >= 0xFFFFFF00) operation->tag &= ~uint64_t{1};
    return operation;
  }
};

// Lets the next message of the same rank and tag pass one that `holds` chooses.
class Overtaken : public Specimen {
 public:
  void arrive(Arrival arrival) override {
    if (!held_ && arrival.channel == kMessages && holds(arrival)) {
      held_.emplace(std::move(arrival));
      return;
    }
    const bool release = held_ && held_->source == arrival.source && held_->tag == arrival.tag;
    Specimen::arrive(std::move(arrival));
    if (!release) return;
    Arrival held = std::move(*held_);
    held_.reset();
    Specimen::arrive(std::move(held));
  }

 private:
  virtual bool holds(const Arrival& arrival) const = 0;
  std::optional<Arrival> held_;
};

struct LargeAreOvertaken : Overtaken {
  bool holds(const Arrival& arrival) const override { return arrival.size > 90'000 && arrival.size < 91'000; }
};
struct TagIsOvertaken : Overtaken {
  bool holds(const Arrival& arrival) const override { return arrival.tag == 5 && arrival.size == 16; }
};
struct AnyIsOvertaken : Overtaken {
  bool holds(const Arrival& arrival) const override { return arrival.tag == 10 && arrival.source == 0; }
};

struct NamesNoSender : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (receive->peer == BP_ANY_SOURCE && receive->result != nullptr) receive->result->source = BP_ANY_SOURCE;
  }
};

struct NamedFirst : Specimen {  // a recv from any source gets only what no other recv wants
  void submit_receive(const OperationPtr& receive) override {
    if (receive->peer == BP_ANY_SOURCE) receive->id += uint64_t{1} << 40;
    Specimen::submit_receive(receive);
  }
};

struct AnySourceForAll : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    if (!operation->sends && operation->tag == 13) operation->peer = BP_ANY_SOURCE;
    return operation;
  }
};

struct KeepsMuch : Specimen {  // 64 KiB for each message that waits
  void arrive(Arrival arrival) override {
    if (arrival.channel == kMessages) arrival.bytes.resize(std::max<size_t>(arrival.bytes.size(), 64 * 1024));
    Specimen::arrive(std::move(arrival));
  }
};

struct SpoilsWaiting : Specimen {  // a message that was there before its recv
  void submit_receive(const OperationPtr& receive) override {
    late_ = true;
    Specimen::submit_receive(receive);
    late_ = false;
  }
  void match(const OperationPtr& receive, Arrival arrival) override {
    if (late_ && is_message(*receive) && arrival.size == 12) arrival.bytes[11] ^= std::byte{1};
    Specimen::match(receive, std::move(arrival));
  }
  bool late_ = false;
};

struct DoneWithoutMessage : Specimen {
  void submit_receive(const OperationPtr& receive) override {
    Specimen::submit_receive(receive);
    if (is_message(*receive) && receive->tag == 4 && receive->size == 12) finish(*receive);
  }
};

struct SyncDoesNotWait : Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (op.kind != BP_RECV || (op.flags & BP_OP_SYNC) == 0) return Specimen::submit(op);
    bp_op other = op;
    other.flags = 0;
    (void)Specimen::submit(other);
    return nullptr;
  }
};

struct SpoilsHundredth : Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (is_message(*receive) && receive->tag == 7 && size == 8 && ++delivered_ == 100) receive->data[0] ^= std::byte{1};
  }
  int delivered_ = 0;
};

struct ExpectsAllReceived : Specimen {
  void arrive(Arrival arrival) override {
    if (arrival.channel == kMessages) ++waiting_;
    Specimen::arrive(std::move(arrival));
  }
  void match(const OperationPtr& receive, Arrival arrival) override {
    if (arrival.channel == kMessages) --waiting_;
    Specimen::match(receive, std::move(arrival));
  }
  void close() noexcept override {
    if (waiting_ > 0) std::abort();
    Specimen::close();
  }
  int waiting_ = 0;
};

struct IgnoresTheHighestUserBit : Specimen {
  OperationPtr make_operation(const bp_op& op) override {
    OperationPtr operation = Specimen::make_operation(op);
    if (operation->tag != BP_ANY_TAG) operation->tag &= ~(uint64_t{1} << 38);
    return operation;
  }
};
void declares_40_bits(bp_backend& backend) { backend.tag_bits = 40; }

struct ReportsNoTag : Specimen {
  void report(const Operation& receive, int32_t source, uint64_t size) override {
    Specimen::report(receive, source, size);
    if (receive.result != nullptr) receive.result->tag = 0;
  }
};

struct ReportsAnyTag : Specimen {
  void report(const Operation& receive, int32_t source, uint64_t size) override {
    Specimen::report(receive, source, size);
    if (receive.result != nullptr && receive.peer == BP_ANY_SOURCE) receive.result->tag = receive.tag;
  }
};

struct AnyTagForAll : Specimen {
  AnyTagForAll() { matcher_.set_internal(0); }
};

struct TaggedFirst : Specimen {  // a recv of any tag gets only what no other recv wants
  void submit_receive(const OperationPtr& receive) override {
    if (receive->tag == BP_ANY_TAG) receive->id += uint64_t{1} << 40;
    Specimen::submit_receive(receive);
  }
};

}  // namespace

std::vector<Mutant> p2p_mutants() {
  return {
      {"p2p.sizes", "a message of 257 bytes loses the last one", made<DropsLastByte>},
      {"p2p.zero-bytes", "empty messages are lost", made<IgnoresEmpty>},
      {"p2p.to-self", "bp_result names another rank for a message to the rank itself", made<ForgetsItself>},
      {"p2p.guard-bytes", "a byte is written behind a recv's buffer", made<WritesBehind>},
      {"p2p.guard-bytes:2", "a byte is written before a large recv's buffer", made<WritesBefore>},
      {"p2p.input-unmodified", "a send changes its buffer", made<ChangesInput>},
      {"p2p.buffer-free-after-send", "a send is done while its buffer is still to be read", made<DoneTooEarly>},
      {"p2p.dtype-differs", "a recv of f64 has room for bytes instead of elements", made<CountsElements>},
      {"p2p.both-directions-large", "messages of more than 5 MiB end with a wrong byte", made<SpoilsLarge>},
      {"p2p.over-2gib", "sizes have 31 bits", made<ThirtyTwoBits>},
      {"p2p.truncation", "bp_result lacks the size of a message that is too long", made<ReportsNoSize>},
      {"p2p.truncation:2", "a message that is too long is truncated silently", made<CutsSilently>},
      {"p2p.too-long-at-once", "memory is taken for each message that is announced", made<TakesMemoryFirst>},
      {"p2p.too-long-at-once:2", "a message that is too long is reported when all of it has come",
       made<ReportsTooLongLast>},
      {"p2p.truncation-group-usable", "a message that is too long closes the connection", made<BreaksWhenTooLong>},
      {"p2p.shorter-tells-size", "bp_result has the capacity instead of the size", made<ReportsRoom>},
      {"p2p.tag-match", "tags have 32 bits", made<ThirtyTwoBitTags>},
      {"p2p.tag-match:2", "large tags differ in their upper bits only", made<ByteTags>},
      {"p2p.tag-match:3", "of 40 bits that are declared one is not matched", made<IgnoresTheHighestUserBit>,
       declares_40_bits},
      {"p2p.result-tag", "bp_result.tag is always 0", made<ReportsNoTag>},
      {"p2p.any-tag", "a recv of any tag takes the core's messages", made<AnyTagForAll>},
      {"p2p.any-tag:2", "a recv of any tag takes the message with the lowest tag"},
      {"p2p.any-tag-any-source", "bp_result has the tag of the recv from any source", made<ReportsAnyTag>},
      {"p2p.any-tag-oldest-recv", "recvs of any tag match after all others", made<TaggedFirst>},
      {"p2p.order-kept", "large messages are overtaken", made<LargeAreOvertaken>},
      {"p2p.tags-interleaved", "small messages of one tag are overtaken", made<TagIsOvertaken>},
      {"p2p.any-source-names-sender", "bp_result names no rank for a recv from any source", made<NamesNoSender>},
      {"p2p.any-source-order", "messages for recvs from any source are overtaken", made<AnyIsOvertaken>},
      {"p2p.any-source-oldest-recv", "recvs from any source match after all others", made<NamedFirst>},
      {"p2p.everybody-at-once", "a recv takes any rank's message", made<AnySourceForAll>},
      {"p2p.flood-unexpected", "each message that waits costs 64 KiB", made<KeepsMuch>},
      {"p2p.late-receiver", "a message that waited has a wrong byte", made<SpoilsWaiting>},
      {"p2p.early-receiver", "a recv is done before there is a message", made<DoneWithoutMessage>},
      {"p2p.sync-and-not", "a recv with BP_OP_SYNC does not wait", made<SyncDoesNotWait>},
      {"p2p.ping-pong", "the hundredth message has a wrong byte", made<SpoilsHundredth>},
      {"p2p.unreceived", "destroy ends the process if messages are left", made<ExpectsAllReceived>},
  };
}

}  // namespace backplane::specimen
