// SPDX-License-Identifier: Apache-2.0
//
// Process groups: torch.distributed's collectives and messages on C++ buffers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/memory.hpp"
#include "backplane/store.hpp"

namespace backplane {

// What every operation can be told. All fields may be left out.
struct CallOptions {
  bool async_op = false;              // return at once; the Work must be waited for
  Timeout timeout = kDefaultTimeout;  // of this call
  void* stream = nullptr;             // device buffers: the stream to order on (cudaStream_t); nullptr: the one that
                                      // register_stream named, else the device's default one
};

// As CallOptions::stream: no ordering. The buffers are ready, and the program waits for the Work.
inline void* const kNoStream = BP_NO_STREAM;

namespace detail {
inline thread_local std::vector<void*> registered_streams;  // by device

inline void* registered_stream(const Buffer& in, const Buffer& out) {
  const Device device = in.device().memory == BP_CUDA ? in.device() : out.device();
  const auto at = static_cast<size_t>(device.ordinal);
  return device.memory == BP_CUDA && at < registered_streams.size() ? registered_streams[at] : nullptr;
}
}  // namespace detail

// From now on, operations that this thread starts with buffers on this device, and that name no stream, are ordered on
// this one (cudaStream_t), which stays the caller's; nullptr: on the device's default stream again. The first
// torch.distributed's _register_stream.
inline void register_stream(void* stream, Device device) {
  const auto at = static_cast<size_t>(device.ordinal);
  if (detail::registered_streams.size() <= at) detail::registered_streams.resize(at + 1);
  detail::registered_streams[at] = stream;
}

// Who sent a received message, and how long it was.
struct Received {
  int source = -1;
  uint64_t bytes = 0;
};

// An operation. That of a synchronous call is done already. Copies share it. Dropping it is allowed: the operation goes
// on, and its buffers stay busy until it is done or the group is destroyed.
class Work {
 public:
  Work() = default;

  // Does not block. Throws what the operation failed with, the same each time.
  bool is_completed() { return !request_ || detail::call(bp_request_test, request_.get()) == BP_OK; }
  // Waits until the operation is done; its own timeout ends it at the latest.
  void wait() { wait_for(kNoTimeout); }
  // Waits for up to `timeout`; false if the operation is still going on then.
  bool wait_for(Timeout timeout) {
    return !request_ || detail::call(bp_request_wait, request_.get(), timeout.count()) == BP_OK;
  }
  // Has `stream` (cudaStream_t, of the buffers' device) wait for the operation in the host's stead: what is put into it
  // from now on runs after the operation. Waits only until the operation is in a stream itself (a message: until its
  // other end is there); where the backend knows no streams, until it is done. A failure that comes later is told by
  // wait, which must come before the buffers end.
  void wait_on_stream(void* stream) {
    if (request_) detail::call(bp_request_wait_on_stream, request_.get(), stream);
  }
  // Asks it to end with Status::kCancelled. Cancelling a collective breaks the group.
  void cancel() {
    if (request_) bp_request_cancel(request_.get());
  }
  // Of a recv that is done.
  Received received() const {
    bp_result result = inline_result_;
    if (request_) bp_request_result(request_.get(), &result);
    return {result.source, result.bytes};
  }

 private:
  friend class ProcessGroup;
  std::shared_ptr<bp_request> request_;  // empty: done
  bp_result inline_result_ = {sizeof(bp_result), -1, 0, 0};
};

// How a group is made; what is left out comes from the environment.
struct GroupOptions {
  std::string backend;      // "gloo", "gloo?iface=eth0&threads=2", "cpu:gloo,cuda:nccl", "auto"; else BACKPLANE_BACKEND
  std::string init_method;  // "env://" (the default), "tcp://host:port", "file:///path"
  int rank = -1;
  int world_size = -1;
  std::optional<Store> store;         // instead of an init method; then rank and world_size are needed
  std::string name;                   // for messages
  Timeout timeout = kDefaultTimeout;  // of init and, by default, of each operation; 30 minutes
  int device = -1;                    // ordinal of the device this rank computes on
};

// Counts and displacements (in elements) of a v-variant, one per rank. Without displacements the blocks follow each
// other without gaps.
struct Blocks {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs = {};
};

// A handle; copies share the group, and the last one to go ends it. Any thread may call anything, but all ranks must
// start the collectives of one group in the same order. Unless a line says otherwise, operations block until they are
// done (async_op: return a Work at once), buffers stay the caller's and must live until then, and failures throw Error.
// N is the number of elements of a rank's part, W the world size.
class ProcessGroup {
 public:
  // A group that is nobody's default. Blocks until all ranks have come.
  static ProcessGroup create(const GroupOptions& options) { return make(bp_group_create, options); }
  // Takes over a handle of the C API.
  explicit ProcessGroup(bp_group* handle) : group_(handle, bp_group_release) {}

  int rank() const { return bp_group_rank(get()); }  // -1 on a rank that is not a member
  int world_size() const { return bp_group_world_size(get()); }
  std::string name() const { return bp_group_name(get()); }
  // The id of the backend that serves a kind of memory, empty if none does.
  std::string backend(Device device = {}) const {
    const char* id = bp_group_backend(get(), device.memory);
    return id == nullptr ? "" : id;
  }
  // This group's `rank` as a rank of the job's first group.
  int global_rank(int rank) const { return bp_group_global_rank(get(), rank); }
  bp_group* get() const { return group_.get(); }

  Work barrier(const CallOptions& options = {}) { return run(make_op(BP_BARRIER, {}, {}, options), options); }

  // N elements of the root reach everyone's buffer.
  Work broadcast(Buffer buffer, int root, const CallOptions& options = {}) {
    return run(rooted(make_op(BP_BROADCAST, {}, buffer, options), root), options);
  }
  // The same bits on every rank. One buffer: in place.
  Work all_reduce(Buffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(reducing(make_op(BP_ALL_REDUCE, in, out, options), op), options);
  }
  Work all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return all_reduce(buffer, buffer, op, options);
  }
  // The sum of factor * in over all ranks; each rank has a factor of its own (NCCL's PreMulSum).
  template <Element T>
  Work all_reduce_premul_sum(Buffer in, Buffer out, const T& factor, const CallOptions& options = {}) {
    bp_op op = make_op(BP_ALL_REDUCE, in, out, options);
    op.reduce_op = BP_PREMUL_SUM;
    op.scalar = &factor;
    return run(static_cast<bp_op&&>(op), options);
  }
  // `out` (N) is written at the root only, and may be empty elsewhere.
  Work reduce(Buffer in, Buffer out, int root, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(rooted(reducing(make_op(BP_REDUCE, in, out, options), op), root), options);
  }
  // out: N*W at the root, in rank order; may be empty elsewhere.
  Work gather(Buffer in, Buffer out, int root, const CallOptions& options = {}) {
    return run(rooted(make_op(BP_GATHER, in, out, options), root), options);
  }
  // `blocks` matters at the root only.
  Work gatherv(Buffer in, Buffer out, const Blocks& blocks, int root, const CallOptions& options = {}) {
    return run(with_out(rooted(make_op(BP_GATHERV, in, out, options), root), blocks, root), options);
  }
  // in: N*W at the root, in rank order; may be empty elsewhere.
  Work scatter(Buffer in, Buffer out, int root, const CallOptions& options = {}) {
    return run(rooted(make_op(BP_SCATTER, in, out, options), root), options);
  }
  Work scatterv(Buffer in, const Blocks& blocks, Buffer out, int root, const CallOptions& options = {}) {
    return run(with_in(rooted(make_op(BP_SCATTERV, in, out, options), root), blocks, root), options);
  }
  // out: N*W, in rank order.
  Work all_gather(Buffer in, Buffer out, const CallOptions& options = {}) {
    return run(make_op(BP_ALL_GATHER, in, out, options), options);
  }
  Work all_gatherv(Buffer in, Buffer out, const Blocks& blocks, const CallOptions& options = {}) {
    return run(with_out(make_op(BP_ALL_GATHERV, in, out, options), blocks, rank()), options);
  }
  // in: N*W; out: this rank's N of the reduced blocks.
  Work reduce_scatter(Buffer in, Buffer out, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return run(reducing(make_op(BP_REDUCE_SCATTER, in, out, options), op), options);
  }
  Work reduce_scatterv(Buffer in, const Blocks& blocks, Buffer out, ReduceOp op = ReduceOp::kSum,
                       const CallOptions& options = {}) {
    return run(with_in(reducing(make_op(BP_REDUCE_SCATTERV, in, out, options), op), blocks, rank()), options);
  }
  // in, out: N*W; block r goes to, and comes from, rank r.
  Work all_to_all(Buffer in, Buffer out, const CallOptions& options = {}) {
    return run(make_op(BP_ALL_TO_ALL, in, out, options), options);
  }
  Work all_to_allv(Buffer in, const Blocks& in_blocks, Buffer out, const Blocks& out_blocks,
                   const CallOptions& options = {}) {
    return run(with_out(with_in(make_op(BP_ALL_TO_ALLV, in, out, options), in_blocks, rank()), out_blocks, rank()),
               options);
  }

  // A message of N elements. May wait for its recv. Tags tell messages between two ranks apart.
  Work send(Buffer buffer, int peer, uint32_t tag = 0, const CallOptions& options = {}) {
    bp_op op = make_op(BP_SEND, buffer, {}, options);
    op.peer = peer;
    op.tag = tag;
    return run(static_cast<bp_op&&>(op), options);
  }
  // Up to N elements from `peer`, or from anyone (kAnySource); Work::received tells sender and size. A longer message
  // is Status::kInvalid.
  static constexpr int kAnySource = BP_ANY_SOURCE;
  Work recv(Buffer buffer, int peer = kAnySource, uint32_t tag = 0, const CallOptions& options = {}) {
    bp_op op = make_op(BP_RECV, {}, buffer, options);
    op.peer = peer;
    op.tag = tag;
    return run(static_cast<bp_op&&>(op), options);
  }
  Work isend(Buffer buffer, int peer, uint32_t tag = 0, CallOptions options = {}) {
    options.async_op = true;
    return send(buffer, peer, tag, options);
  }
  Work irecv(Buffer buffer, int peer = kAnySource, uint32_t tag = 0, CallOptions options = {}) {
    options.async_op = true;
    return recv(buffer, peer, tag, options);
  }

  // Byte strings of any length, each rank's its own. Nothing in them is executed or interpreted.
  std::string broadcast_object(std::string_view object, int root, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_BROADCAST, root, {object}, timeout).front();
  }
  // W objects at the root, none elsewhere.
  std::vector<std::string> gather_object(std::string_view object, int root, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_GATHER, root, {object}, timeout);
  }
  std::vector<std::string> all_gather_object(std::string_view object, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_ALL_GATHER, 0, {object}, timeout);
  }
  // `objects` (W) matters at the root only.
  std::string scatter_object(const std::vector<std::string>& objects, int root, Timeout timeout = kDefaultTimeout) {
    return exchange(BP_SCATTER, root, {objects.begin(), objects.end()}, timeout).front();
  }

  // A group of some ranks of this one. Called by all ranks of this group, in the same order, with the same list. Ranks
  // that are not in it get a group on which every operation throws.
  ProcessGroup new_group(const std::vector<int>& ranks, const std::string& name = "",
                         Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_new, get(), ranks.data(), ranks.size(), name.empty() ? nullptr : name.c_str(),
                 timeout.count(), &group);
    return ProcessGroup(group);
  }
  // A group of the same ranks over another backend. Called by all of them, in the same order.
  ProcessGroup with_backend(const std::string& backend, Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_with_backend, get(), backend.c_str(), timeout.count(), &group);
    return ProcessGroup(group);
  }
  // Groups of the ranks with the same colour, in order of key; a negative colour joins none.
  ProcessGroup split(int64_t color, int64_t key = 0) {
    bp_group* group = nullptr;
    detail::call(bp_group_split, get(), color, key, &group);
    return ProcessGroup(group);
  }

  // A group of those members that are left, in the same order and numbered anew, usable at once: how the survivors of
  // a death (Status::kPeerLost) go on. Called by all members that live, as often as each other, also on a broken group.
  // Blocks until each member has come or is known to be gone, up to `timeout`: Status::kTimeout names those that have
  // not, and calling it again goes on from there. Status::kPeerLost: the store is gone, or the others have given this
  // rank up. The new group does not end with this one.
  ProcessGroup shrink(Timeout timeout = kDefaultTimeout) {
    bp_group* group = nullptr;
    detail::call(bp_group_shrink, get(), timeout.count(), &group);
    return ProcessGroup(group);
  }

  // Host memory for `count` elements that this group's operations reach directly, if its backend has such memory to
  // give, else ordinary memory (memory.hpp). Each rank for itself; does not wait for anybody. Status::kResource: there
  // is not so much. With a device: memory of that device, which the program reaches by the device's own means;
  // Status::kUnsupported if no backend of this group gives any.
  template <Element T>
  Memory<T> allocate(uint64_t count, Device device = {}) {
    return Memory<T>(detail::allocate(get(), count, sizeof(T), device), count);
  }

  // Everything pending and everything later fails. Does not wait for anybody.
  void abort(const std::string& why) { detail::call(bp_group_abort, get(), why.c_str()); }
  // Ends the group on this rank; later calls throw.
  void destroy() { detail::call(bp_group_destroy, get()); }
  // The last operations of this rank, as JSON.
  std::string trace() const {
    char* json = nullptr;
    detail::call(bp_group_trace, get(), &json);
    return detail::take(json);
  }

  // The operation itself, for what the calls above do not cover.
  static bp_op make_op(uint32_t kind, const Buffer& in, const Buffer& out, const CallOptions& options) {
    if (in.data() != nullptr && out.data() != nullptr && in.dtype() != out.dtype()) {
      refuse("input and output have different dtypes; give both the same");
    }
    bp_op op;
    bp_op_init(&op, kind);
    op.dtype = static_cast<uint32_t>(in.data() != nullptr || out.data() == nullptr ? in.dtype() : out.dtype());
    op.timeout_ns = options.timeout.count();
    op.input = {in.data(), in.count(), in.device().memory, in.device().ordinal};
    op.output = {out.data(), out.count(), out.device().memory, out.device().ordinal};
    op.stream = options.stream != nullptr ? options.stream : detail::registered_stream(in, out);
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

  [[noreturn]] static void refuse(const char* why) { detail::fail(Status::kInvalid, why); }

  // These hand their operation on by reference: a copy of its 160 bytes is a third of what a call costs here.
  static bp_op&& rooted(bp_op&& op, int root) {
    op.root = root;
    return static_cast<bp_op&&>(op);
  }
  static bp_op&& reducing(bp_op&& op, ReduceOp reduce_op) {
    op.reduce_op = static_cast<uint32_t>(reduce_op);
    return static_cast<bp_op&&>(op);
  }
  // The blocks are looked at only on `where`.
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
    const std::unique_ptr<bp_objects, decltype(&bp_objects_release)> objects(raw, bp_objects_release);
    std::vector<std::string> out;
    for (uint64_t i = 0; i < bp_objects_count(raw); ++i) {
      uint64_t size = 0;
      const void* bytes = bp_objects_get(raw, i, &size);
      out.emplace_back(static_cast<const char*>(bytes), size);
    }
    return out;
  }

  static ProcessGroup make(int32_t (*function)(const bp_group_config*, bp_group**, bp_error*),
                           const GroupOptions& options) {
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
    bp_group* group = nullptr;
    detail::call(function, static_cast<const bp_group_config*>(&config), &group);
    return ProcessGroup(group);
  }

  std::shared_ptr<bp_group> group_;
};

}  // namespace backplane
