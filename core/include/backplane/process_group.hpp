// SPDX-License-Identifier: Apache-2.0
//
// Process groups: torch.distributed's collectives and messages on C++ buffers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "backplane/detail/memory.hpp"
#include "backplane/detail/work.hpp"
#include "backplane/store.hpp"

namespace backplane {

// How a group is created. Fields that are left out come from the environment.
struct GroupOptions {
  // "gloo", "gloo?iface=eth0&threads=2", "cpu:gloo,cuda:nccl", "auto". Empty: BACKPLANE_BACKEND, else "auto".
  std::string backend = {};
  // "env://", "tcp://host:port", "file:///path". Empty: "env://".
  std::string init_method = {};
  int rank = -1;
  int world_size = -1;
  std::optional<Store> store = {};    // instead of an init method; requires rank and world_size
  std::string name = {};              // appears in messages
  Timeout timeout = kDefaultTimeout;  // of creation and, by default, of each operation; 30 minutes if left out
  int device = -1;                    // ordinal of the CUDA device of this rank; -1: none
};

// Counts and displacements of a v-variant, in elements, one of each per rank. Empty `displs`: the blocks are adjacent.
struct Blocks {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs = {};
};

// A handle to a group. Copies share the group; destroying the last copy ends it. All members may be called from any
// thread. All ranks must start the collectives of one group in the same order.
//
// Unless a line says otherwise, an operation blocks until it is done, or returns a Work at once with async_op; buffers
// stay the caller's and must stay alive and untouched until it is done; a failure throws Error. Inputs come before
// outputs. N is the number of elements of one rank's part, W the world size.
class ProcessGroup {
 public:
  // Creates a group without making it the default. Blocks until all ranks have called it, at most options.timeout.
  static ProcessGroup create(const GroupOptions& options) { return make(bp_group_create, options); }
  // Joins a running group as a newcomer, once its members call `grow` with the same store. options.store is required,
  // options.backend must be that of the members, rank and world_size stay -1. Blocks for at most `timeout`.
  // Status::kTimeout: no group took this process. Status::kInvalid: the members refused it. See bp_group_join.
  static ProcessGroup join(const GroupOptions& options, Timeout timeout = kDefaultTimeout) {
    const bp_group_config config = to_config(options);
    bp_group* group = nullptr;
    detail::call(bp_group_join, &config, timeout.count(), &group);
    return ProcessGroup(group);
  }
  // Takes over a handle of the C API.
  explicit ProcessGroup(bp_group* handle) : group_(handle, bp_group_release) {}

  // -1 on a rank that is not a member.
  int rank() const { return bp_group_rank(get()); }
  int world_size() const { return bp_group_world_size(get()); }
  std::string name() const {
    const char* const name = bp_group_name(get());
    if (name == nullptr) check();  // throws
    return name;
  }
  // The id of the backend that serves the device's kind of memory; empty if none does.
  std::string backend(Device device = {}) const {
    const char* id = bp_group_backend(get(), device.memory);
    return id == nullptr ? "" : id;
  }
  // The rank in the job's first group of this group's `rank`.
  int global_rank(int rank) const { return bp_group_global_rank(get(), rank); }
  bp_group* get() const { return group_.get(); }

  Work barrier(const CallOptions& options = {}) { return run(make_op(BP_BARRIER, {}, {}, options), options); }

  // Copies the root's N elements to every rank's buffer.
  Work broadcast(Buffer buffer, int root, const CallOptions& options = {}) {
    return run(rooted(make_op(BP_BROADCAST, {}, buffer, options), root), options);
  }
  // in, out: N. Every rank gets the same bits. `in` and `out` may be the same buffer; one argument: in place.
  Work all_reduce(ConstBuffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(reducing(make_op(BP_ALL_REDUCE, in, out, options), op), options);
  }
  Work all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return all_reduce(buffer, buffer, op, options);
  }
  // in, out: N. The sum of factor * in over all ranks; each rank passes its own factor, which is copied (NCCL's
  // PreMulSum).
  template <Element T>
  Work all_reduce_premul_sum(ConstBuffer in, Buffer out, const T& factor, const CallOptions& options = {}) {
    bp_op op = make_op(BP_ALL_REDUCE, in, out, options);
    op.reduce_op = BP_PREMUL_SUM;
    op.scalar = &factor;
    return run(static_cast<bp_op&&>(op), options);
  }
  // in: N. out: N, written at the root only; may be empty elsewhere.
  Work reduce(ConstBuffer in, Buffer out, int root, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(rooted(reducing(make_op(BP_REDUCE, in, out, options), op), root), options);
  }
  // in: N. out: N*W at the root, in rank order; may be empty elsewhere.
  Work gather(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}) {
    return run(rooted(make_op(BP_GATHER, in, out, options), root), options);
  }
  // `blocks` describes `out`; only the root's is read.
  Work gatherv(ConstBuffer in, Buffer out, const Blocks& blocks, int root, const CallOptions& options = {}) {
    return run(with_out(rooted(make_op(BP_GATHERV, in, out, options), root), blocks, root), options);
  }
  // in: N*W at the root, in rank order; may be empty elsewhere. out: N.
  Work scatter(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}) {
    return run(rooted(make_op(BP_SCATTER, in, out, options), root), options);
  }
  // `blocks` describes `in`; only the root's is read.
  Work scatterv(ConstBuffer in, const Blocks& blocks, Buffer out, int root, const CallOptions& options = {}) {
    return run(with_in(rooted(make_op(BP_SCATTERV, in, out, options), root), blocks, root), options);
  }
  // in: N. out: N*W, in rank order.
  Work all_gather(ConstBuffer in, Buffer out, const CallOptions& options = {}) {
    return run(make_op(BP_ALL_GATHER, in, out, options), options);
  }
  // `blocks` describes `out` and must be the same on all ranks.
  Work all_gatherv(ConstBuffer in, Buffer out, const Blocks& blocks, const CallOptions& options = {}) {
    return run(with_out(make_op(BP_ALL_GATHERV, in, out, options), blocks, rank()), options);
  }
  // in: N*W. out: this rank's N of the reduced blocks.
  Work reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(reducing(make_op(BP_REDUCE_SCATTER, in, out, options), op), options);
  }
  // `blocks` describes `in` and must be the same on all ranks.
  Work reduce_scatterv(ConstBuffer in, const Blocks& blocks, Buffer out, ReduceOp op = ReduceOp::kSum,
                       const CallOptions& options = {}) {
    return run(with_in(reducing(make_op(BP_REDUCE_SCATTERV, in, out, options), op), blocks, rank()), options);
  }
  // in, out: N*W. Block r of `in` goes to rank r; block r of `out` comes from it.
  Work all_to_all(ConstBuffer in, Buffer out, const CallOptions& options = {}) {
    return run(make_op(BP_ALL_TO_ALL, in, out, options), options);
  }
  // Count r of `in_blocks` must equal this rank's count of `out_blocks` on rank r.
  Work all_to_allv(ConstBuffer in, const Blocks& in_blocks, Buffer out, const Blocks& out_blocks,
                   const CallOptions& options = {}) {
    return run(with_out(with_in(make_op(BP_ALL_TO_ALLV, in, out, options), in_blocks, rank()), out_blocks, rank()),
               options);
  }

  // in, out: N. out on rank r: the inputs of ranks 0 to r reduced. Status::kInvalid for ReduceOp::kAvg.
  Work scan(ConstBuffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(reducing(make_op(BP_SCAN, in, out, options), op), options);
  }
  // The same for ranks 0 to r - 1. Rank 0's `out` is left as it was.
  Work exscan(ConstBuffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(reducing(make_op(BP_EXSCAN, in, out, options), op), options);
  }

  // The collectives with a list of W buffers of N elements, one per rank, instead of one buffer of N*W. Host buffers
  // that are not adjacent are copied through memory of the group's. The lists are copied.
  Work gather_list(ConstBuffer in, const std::vector<Buffer>& outs, int root, const CallOptions& options = {}) {
    return run_list(rooted(make_op(BP_GATHER, in, first_of(outs), options), root), {}, outs, options);
  }
  Work scatter_list(const std::vector<ConstBuffer>& ins, Buffer out, int root, const CallOptions& options = {}) {
    return run_list(rooted(make_op(BP_SCATTER, first_of(ins), out, options), root), ins, {}, options);
  }
  Work all_gather_list(ConstBuffer in, const std::vector<Buffer>& outs, const CallOptions& options = {}) {
    return run_list(make_op(BP_ALL_GATHER, in, first_of(outs), options), {}, outs, options);
  }
  Work reduce_scatter_list(const std::vector<ConstBuffer>& ins, Buffer out, ReduceOp op = ReduceOp::kSum,
                           const CallOptions& options = {}) {
    return run_list(reducing(make_op(BP_REDUCE_SCATTER, first_of(ins), out, options), op), ins, {}, options);
  }
  Work all_to_all_list(const std::vector<ConstBuffer>& ins, const std::vector<Buffer>& outs,
                       const CallOptions& options = {}) {
    return run_list(make_op(BP_ALL_TO_ALL, first_of(ins), first_of(outs), options), ins, outs, options);
  }

  // Sends N elements to `peer`. May block until the peer receives. A recv matches a send with the same tag.
  Work send(ConstBuffer buffer, int peer, uint32_t tag = 0, const CallOptions& options = {}) {
    bp_op op = make_op(BP_SEND, buffer, {}, options);
    op.peer = peer;
    op.tag = tag;
    return run(static_cast<bp_op&&>(op), options);
  }
  // Receives at most N elements from `peer`, or from any rank (kAnySource), with `tag`, or with any tag (kAnyTag).
  // Work::received returns the sender, the size and the tag. Status::kInvalid if the message is longer; it is consumed.
  static constexpr int kAnySource = BP_ANY_SOURCE;
  static constexpr uint64_t kAnyTag = BP_ANY_TAG;
  Work recv(Buffer buffer, int peer = kAnySource, uint64_t tag = 0, const CallOptions& options = {}) {
    bp_op op = make_op(BP_RECV, {}, buffer, options);
    op.peer = peer;
    op.tag = tag;
    return run(static_cast<bp_op&&>(op), options);
  }
  // send and recv with async_op. The buffer is in use until the Work says that the operation has ended.
  [[nodiscard]] Work isend(ConstBuffer buffer, int peer, uint32_t tag = 0, CallOptions options = {}) {
    options.async_op = true;
    return send(buffer, peer, tag, options);
  }
  [[nodiscard]] Work irecv(Buffer buffer, int peer = kAnySource, uint64_t tag = 0, CallOptions options = {}) {
    options.async_op = true;
    return recv(buffer, peer, tag, options);
  }
  // isend of a vector that the group keeps until the operation is done, so that the Work may be dropped.
  template <Element T>
  requires(!std::is_same_v<T, bool>) Work
      isend(std::vector<T>&& message, int peer, uint32_t tag = 0, const CallOptions& options = {}) {
    const auto kept = std::make_shared<std::vector<T>>(std::move(message));
    Work work = isend(ConstBuffer(*kept), peer, tag, options);
    work.on_done([kept](const Error*) {});
    return work;
  }
  // Sends `out` to `to` and receives `in` from `from` at the same time. Blocks until both are done.
  Received sendrecv(ConstBuffer out, int to, Buffer in, int from, uint32_t tag = 0, const CallOptions& options = {}) {
    Work work;
    bp_op send = make_op(BP_SEND, out, {}, options);
    send.peer = to;
    send.tag = tag;
    bp_op recv = make_op(BP_RECV, {}, in, options);
    recv.peer = from;
    recv.tag = tag;
    recv.result = &work.inline_result_;
    detail::call(bp_group_sendrecv, get(), static_cast<const bp_op*>(&send), static_cast<const bp_op*>(&recv));
    return work.received();
  }
  // Takes the oldest matching message, which no other recv can then receive, so that a buffer of its size can be
  // allocated. Blocks until there is one, at most `timeout`. Status::kUnsupported if the backend cannot probe.
  Message probe(int peer = kAnySource, uint64_t tag = 0, Timeout timeout = kDefaultTimeout) {
    bp_message* message = nullptr;
    bp_result found = {sizeof found, -1, 0, 0};
    detail::call(bp_group_probe, get(), peer, tag, timeout.count(), &message, &found);
    return Message(message, {found.source, found.bytes, found.tag});
  }
  // Receives a message that probe took.
  Work recv(Buffer buffer, Message message, const CallOptions& options = {}) {
    bp_op op = make_op(BP_RECV, {}, buffer, options);
    op.peer = kAnySource;
    op.message = message.take();
    return run(static_cast<bp_op&&>(op), options);
  }

  // Byte strings of any length, which may differ between ranks. Their content is not interpreted. These calls block.
  // Returns the root's object.
  std::string broadcast_object(std::string_view object, int root, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_BROADCAST, root, {object}, timeout).front();
  }
  // Returns W objects at the root, in rank order, and none elsewhere.
  std::vector<std::string> gather_object(std::string_view object, int root, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_GATHER, root, {object}, timeout);
  }
  // Returns W objects, in rank order.
  std::vector<std::string> all_gather_object(std::string_view object, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_ALL_GATHER, 0, {object}, timeout);
  }
  // `objects`: W at the root; not read elsewhere. Returns this rank's.
  std::string scatter_object(const std::vector<std::string>& objects, int root, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_SCATTER, root, {objects.begin(), objects.end()}, timeout).front();
  }

  // An object as a message. Tags of objects are apart from those of send and recv. These calls block.
  void send_object(std::string_view object, int peer, uint32_t tag = 0, Timeout timeout = kDefaultTimeout) {
    detail::call(bp_group_send_object, get(), static_cast<const void*>(object.data()), object.size(), peer, tag,
                 timeout.count());
  }
  // Returns the object. *source, unless it is nullptr, is set to its sender.
  std::string recv_object(int peer = kAnySource, uint32_t tag = 0, Timeout timeout = kDefaultTimeout,
                          int* source = nullptr) {
    bp_objects* raw = nullptr;
    detail::call(bp_group_recv_object, get(), peer, tag, timeout.count(), &raw, static_cast<int32_t*>(source));
    return take_objects(raw).front();
  }

  // Creates a group of some ranks of this one. All ranks of this group must call it, in the same order, with the same
  // list. A rank that is not in the list gets a group on which every operation throws. Blocks until the members have
  // called it.
  ProcessGroup new_group(const std::vector<int>& ranks, const std::string& name = "",
                         Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_new, get(), ranks.data(), ranks.size(), name.empty() ? nullptr : name.c_str(),
                 timeout.count(), &group);
    return ProcessGroup(group);
  }
  // The same, called by the members of the new group only. Members that create several groups of the same ranks do so
  // in the same order. Status::kInvalid on a rank that is not in the list.
  ProcessGroup new_group_by_members(const std::vector<int>& ranks, const std::string& name = "",
                                    Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_new_by_members, get(), ranks.data(), ranks.size(), name.empty() ? nullptr : name.c_str(),
                 timeout.count(), &group);
    return ProcessGroup(group);
  }
  // Creates a group of the same ranks over another backend. All of them must call it, in the same order. Blocks until
  // they have.
  ProcessGroup with_backend(const std::string& backend, Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_with_backend, get(), backend.c_str(), timeout.count(), &group);
    return ProcessGroup(group);
  }
  // Creates one group for each colour, of the ranks that pass it, in order of key. All ranks of this group must call
  // it. A rank with a negative colour joins none, and gets a group on which every operation throws.
  ProcessGroup split(int64_t color, int64_t key = 0) {
    bp_group* group = nullptr;
    detail::call(bp_group_split, get(), color, key, &group);
    return ProcessGroup(group);
  }

  // Creates a group of the surviving members, in the same order with new rank numbers, after Status::kPeerLost. All
  // surviving members must call it, equally often. The group may be broken. Blocks until each member has called it or
  // is known to be lost, at most `timeout`. Status::kTimeout names the members that are missing; a second call
  // continues. Status::kPeerLost: the store is lost, or the others count this rank as lost. The new group outlives this
  // one.
  ProcessGroup shrink(Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_shrink, get(), timeout.count(), &group);
    return ProcessGroup(group);
  }

  // Creates a group of all members and of the newcomers that wait in join_group with the same store; their ranks follow
  // those of the members. Collective: ALL members call it, equally often. Empty if no newcomer could be taken: nobody
  // has asked, or those who asked were refused or lost (*why, unless nullptr, says so); this group then continues. See
  // bp_group_grow.
  std::optional<ProcessGroup> grow(const Store& store, Timeout timeout = kDefaultTimeout, std::string* why = nullptr) {
    bp_error error;
    bp_error_init(&error);
    bp_group* group = nullptr;
    const int32_t status = bp_group_grow(get(), store.get(), timeout.count(), &group, &error);
    if (why != nullptr) *why = error.text;
    if (status == BP_AGAIN) return std::nullopt;
    if (status != BP_OK) throw Error(error);
    return ProcessGroup(group);
  }

  // Allocates memory for `count` elements that this group's operations access without a copy, if its backend offers
  // such memory, and ordinary memory otherwise. Local: does not wait for other ranks. Status::kResource: there is not
  // enough memory. With a CUDA device: memory of that device; Status::kUnsupported if no backend of this group offers
  // it.
  template <Element T>
  Memory<T> allocate(uint64_t count, Device device = {}) {
    return Memory<T>(detail::allocate(get(), count, sizeof(T), device), count);
  }

  // Prepares the program's memory for operations of this group, as long as the result lives; the memory must live
  // longer. Registration::native says whether the backend did anything.
  Registration register_memory(const Buffer& buffer) { return Registration(detail::register_memory(get(), buffer)); }

  // Throws why the group is broken, if it is; Status::kInvalid if it was destroyed. Does not block.
  void check() const { detail::call(bp_group_status, get()); }
  // An extension of the backend that serves the device's kind of memory, such as backplane.native/1 (the handle of the
  // library below, see backplane/abi/ext/native.h); nullptr if it has none. Valid until the group ends.
  const void* extension(const std::string& id, Device device = {}) const {
    return bp_group_extension(get(), device.memory, id.c_str());
  }

  // Makes all pending and later operations fail with Status::kCancelled and the text `why`, on all ranks. Does not wait
  // for other ranks.
  void abort(const std::string& why) { detail::call(bp_group_abort, get(), why.c_str()); }
  // Ends the group on this rank. Does not wait for other ranks. Operations in flight fail. Later calls throw.
  void destroy() { detail::call(bp_group_destroy, get()); }
  // The last operations of this rank, as JSON.
  std::string trace() const {
    char* json = nullptr;
    detail::call(bp_group_trace, get(), &json);
    return detail::take(json);
  }

  // An operation of the C API, and its execution: for fields that the calls above do not set.
  static bp_op make_op(uint32_t kind, const ConstBuffer& in, const Buffer& out, const CallOptions& options) {
    if (in.data() != nullptr && out.data() != nullptr && in.dtype() != out.dtype()) {
      refuse("input and output have different dtypes; give both the same");
    }
    bp_op op;
    bp_op_init(&op, kind);
    op.dtype = static_cast<uint32_t>(in.data() != nullptr || out.data() == nullptr ? in.dtype() : out.dtype());
    op.timeout_ns = options.timeout.count();
    op.input = {const_cast<void*>(in.data()), in.count(), in.device().memory, in.device().ordinal};
    op.output = {out.data(), out.count(), out.device().memory, out.device().ordinal};
    op.stream = options.stream;
    return op;
  }
  Work run(bp_op&& op, const CallOptions& options) {
    Work work;
    if (!options.async_op) {
      op.result = &work.inline_result_;
      detail::call(bp_group_run, get(), &op);
      op.result = nullptr;
      return work;
    }
    bp_request* request = nullptr;
    detail::call(bp_group_submit, get(), &op, &request);
    work.request_.reset(request, bp_request_release);
    return work;
  }

 private:
  friend ProcessGroup init_process_group(const GroupOptions& options);

  // The dtype and memory of a list.
  template <typename B>
  static B first_of(const std::vector<B>& list) {
    return list.empty() ? B() : list.front();
  }
  Work run_list(bp_op&& op, const std::vector<ConstBuffer>& ins, const std::vector<Buffer>& outs,
                const CallOptions& options) {
    const auto listed = [this, &op](const auto& list) {
      std::vector<bp_buffer> buffers;
      for (const auto& each : list) {
        if (static_cast<uint32_t>(each.dtype()) != op.dtype) refuse("the buffers of a list have different dtypes");
        buffers.push_back({const_cast<void*>(static_cast<const void*>(each.data())), each.count(), each.device().memory,
                           each.device().ordinal});
      }
      if (!list.empty() && list.size() != static_cast<size_t>(world_size())) {
        refuse("a list needs one buffer per rank of the group");
      }
      return buffers;
    };
    const std::vector<bp_buffer> inputs = listed(ins);
    const std::vector<bp_buffer> outputs = listed(outs);
    Work work;
    bp_request* request = nullptr;
    detail::call(bp_group_run_list, get(), static_cast<const bp_op*>(&op), ins.empty() ? nullptr : inputs.data(),
                 outs.empty() ? nullptr : outputs.data(), options.async_op ? &request : nullptr);
    if (request != nullptr) work.request_.reset(request, bp_request_release);
    return work;
  }

  [[noreturn]] static void refuse(const char* why) { detail::fail(Status::kInvalid, why); }

  // Passed by reference: a copy of the 160 bytes of an operation takes a third of the time of a call.
  static bp_op&& rooted(bp_op&& op, int root) {
    op.root = root;
    return static_cast<bp_op&&>(op);
  }
  static bp_op&& reducing(bp_op&& op, ReduceOp reduce_op) {
    op.reduce_op = static_cast<uint32_t>(reduce_op);
    return static_cast<bp_op&&>(op);
  }
  // The blocks are read only on rank `where`.
  bp_op&& with_in(bp_op&& op, const Blocks& blocks, int where) const {
    if (rank() == where) set_blocks(blocks, op.in_counts, op.in_displs);
    return static_cast<bp_op&&>(op);
  }
  bp_op&& with_out(bp_op&& op, const Blocks& blocks, int where) const {
    if (rank() == where) set_blocks(blocks, op.out_counts, op.out_displs);
    return static_cast<bp_op&&>(op);
  }
  void set_blocks(const Blocks& blocks, const uint64_t*& counts, const uint64_t*& displs) const {
    const auto world = static_cast<size_t>(world_size());
    if (blocks.counts.size() != world || (!blocks.displs.empty() && blocks.displs.size() != world)) {
      refuse("Blocks need one count, and one displacement or none, per rank of the group");
    }
    counts = blocks.counts.data();
    displs = blocks.displs.empty() ? nullptr : blocks.displs.data();
  }

  std::vector<std::string> exchange(uint32_t kind, int root, const std::vector<std::string_view>& in, Timeout timeout) {
    std::vector<const void*> data;
    std::vector<uint64_t> sizes;
    for (const std::string_view object : in) {
      data.push_back(object.data());
      sizes.push_back(object.size());
    }
    bp_objects* raw = nullptr;
    detail::call(bp_group_exchange_objects, get(), kind, root, data.data(), sizes.data(), in.size(), timeout.count(),
                 &raw);
    return take_objects(raw);
  }
  static std::vector<std::string> take_objects(bp_objects* raw) {
    const std::unique_ptr<bp_objects, decltype(&bp_objects_release)> objects(raw, bp_objects_release);
    std::vector<std::string> out;
    for (uint64_t i = 0; i < bp_objects_count(raw); ++i) {
      uint64_t size = 0;
      const void* bytes = bp_objects_get(raw, i, &size);
      out.emplace_back(static_cast<const char*>(bytes), size);
    }
    return out;
  }

  static bp_group_config to_config(const GroupOptions& options) {
    bp_group_config config;
    bp_group_config_init(&config);
    config.rank = options.rank;
    config.world_size = options.world_size;
    config.device = options.device;
    config.backend = options.backend.empty() ? nullptr : options.backend.c_str();
    config.init_method = options.init_method.empty() ? nullptr : options.init_method.c_str();
    config.name = options.name.empty() ? nullptr : options.name.c_str();
    config.store = options.store ? options.store->get() : nullptr;
    config.timeout_ns = options.timeout.count();
    return config;
  }
  static ProcessGroup make(int32_t (*function)(const bp_group_config*, bp_group**, bp_error*),
                           const GroupOptions& options) {
    const bp_group_config config = to_config(options);
    bp_group* group = nullptr;
    detail::call(function, &config, &group);
    return ProcessGroup(group);
  }

  std::shared_ptr<bp_group> group_;
};

}  // namespace backplane
