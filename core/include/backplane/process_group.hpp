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

#include "backplane/detail/memory.hpp"
#include "backplane/store.hpp"

namespace backplane {

// Options of one operation. All fields may be left out.
struct CallOptions {
  bool async_op = false;              // true: return at once; the caller must wait for the Work
  Timeout timeout = kDefaultTimeout;  // of this operation
  void* stream = nullptr;             // cudaStream_t that orders the operation on device buffers; nullptr: the device's
                                      // default stream
};

// As CallOptions::stream: no ordering. The buffers are ready, and the program waits for the Work.
inline void* const kNoStream = BP_NO_STREAM;

// A received message: the sender's rank in the group, and the size in bytes.
struct Received {
  int source = -1;
  uint64_t bytes = 0;
};

// An operation. A synchronous call returns one that is done. Copies share it. Destroying all copies leaves the
// operation running: its buffers stay busy until it is done or the group is destroyed.
class Work {
 public:
  Work() = default;

  // Does not block. Throws the operation's failure, the same each time.
  bool is_completed() { return !request_ || detail::call(bp_request_test, request_.get()) == BP_OK; }
  // Blocks until the operation is done, at most until its own timeout. Throws the operation's failure.
  void wait() { wait_for(kNoTimeout); }
  // Blocks for at most `timeout`. Returns false if the operation is not done by then; it continues. Throws the
  // operation's failure.
  bool wait_for(Timeout timeout) {
    return !request_ || detail::call(bp_request_wait, request_.get(), timeout.count()) == BP_OK;
  }
  // Makes `stream` (cudaStream_t, of the buffers' device) wait for the operation: work that is enqueued to it later
  // runs after the operation. Blocks until the operation is enqueued; a message, until its peer has the other end
  // ready; with a backend without streams, until the operation is done. wait reports later failures. Call wait before
  // the buffers are freed.
  void wait_on_stream(void* stream) {
    if (request_) detail::call(bp_request_wait_on_stream, request_.get(), stream);
  }
  // Requests that the operation end with Status::kCancelled. Does not block. Cancelling a collective breaks the group.
  void cancel() {
    if (request_) bp_request_cancel(request_.get());
  }
  // The message of a recv that is done.
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
  // Takes over a handle of the C API.
  explicit ProcessGroup(bp_group* handle) : group_(handle, bp_group_release) {}

  // -1 on a rank that is not a member.
  int rank() const { return bp_group_rank(get()); }
  int world_size() const { return bp_group_world_size(get()); }
  std::string name() const { return bp_group_name(get()); }
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

  // Sends N elements to `peer`. May block until the peer receives. A recv matches a send with the same tag.
  Work send(ConstBuffer buffer, int peer, uint32_t tag = 0, const CallOptions& options = {}) {
    bp_op op = make_op(BP_SEND, buffer, {}, options);
    op.peer = peer;
    op.tag = tag;
    return run(static_cast<bp_op&&>(op), options);
  }
  // Receives at most N elements from `peer`, or from any rank (kAnySource). Work::received returns the sender and the
  // size. Status::kInvalid if the message is longer; it is consumed.
  static constexpr int kAnySource = BP_ANY_SOURCE;
  Work recv(Buffer buffer, int peer = kAnySource, uint32_t tag = 0, const CallOptions& options = {}) {
    bp_op op = make_op(BP_RECV, {}, buffer, options);
    op.peer = peer;
    op.tag = tag;
    return run(static_cast<bp_op&&>(op), options);
  }
  // send and recv with async_op.
  Work isend(ConstBuffer buffer, int peer, uint32_t tag = 0, CallOptions options = {}) {
    options.async_op = true;
    return send(buffer, peer, tag, options);
  }
  Work irecv(Buffer buffer, int peer = kAnySource, uint32_t tag = 0, CallOptions options = {}) {
    options.async_op = true;
    return recv(buffer, peer, tag, options);
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

  // Allocates memory for `count` elements that this group's operations access without a copy, if its backend offers
  // such memory, and ordinary memory otherwise. Local: does not wait for other ranks. Status::kResource: there is not
  // enough memory. With a CUDA device: memory of that device; Status::kUnsupported if no backend of this group offers
  // it.
  template <Element T>
  Memory<T> allocate(uint64_t count, Device device = {}) {
    return Memory<T>(detail::allocate(get(), count, sizeof(T), device), count);
  }

  // Makes all pending and later operations fail with Status::kCancelled and the text `why`. Does not wait for other
  // ranks.
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

  [[noreturn]] static void refuse(const char* why) { detail::fail(Status::kInvalid, why); }

  // These pass their operation on by reference: a copy of its 160 bytes takes a third of the time of a call.
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
