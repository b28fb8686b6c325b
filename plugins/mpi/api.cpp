// SPDX-License-Identifier: Apache-2.0
#include "api.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include "functions.hpp"

namespace backplane::mpi {
namespace {

template <typename Abi>
std::array<typename Abi::Handle, kPredefinedCount> predefined_of(const Library& library) {
  std::array<typename Abi::Handle, kPredefinedCount> handles{};
  for (size_t i = 0; i < kPredefinedCount; ++i) {
    if constexpr (std::is_same_v<Abi, OpenMpiAbi>) {
      handles[i] = library.variable(Abi::symbols[i]);
    } else if constexpr (std::is_same_v<Abi, StandardAbi>) {
      handles[i] = pointer_constant(Abi::handles[i]);
    } else {
      handles[i] = Abi::handles[i];
    }
  }
  return handles;
}

template <typename Abi>
class ApiOf final : public Api {
 public:
  using Handle = typename Abi::Handle;
  using Status = typename Abi::Status;

  ApiOf(const Library& library, int max_int_count)
      : max_int_count_(max_int_count), predefined_(predefined_of<Abi>(library)), f_(library), narrow_(library, "") {
    if (library.has("MPI_Ialltoallv_c")) wide_.emplace(library, "_c");
    max_count_ = find_max_count();
    if (std::is_same_v<Abi, OpenMpiAbi> && is_ulfm_enabled() && library.has("MPIX_Comm_get_failed")) {
      failures_.emplace(library);
    }
  }

  const char* abi() const override { return Abi::name; }
  std::string version() const override {
    std::string text(Abi::version_text_size, '\0');
    int size = 0;
    f_.get_library_version(text.data(), &size);
    text.resize(static_cast<size_t>(size));
    text.resize(std::min(text.find_first_of("\n,"), text.size()));
    std::replace(text.begin(), text.end(), '\t', ' ');
    return text;
  }
  bool initialized() const override { return flag(f_.initialized); }
  bool finalized() const override { return flag(f_.finalized); }

  bool init() override {
    const bool ours = !initialized();
    int level = 0;
    if (ours) {
      check("MPI_Init_thread", f_.init_thread(nullptr, nullptr, Abi::thread_multiple, &level));
    } else {
      check("MPI_Query_thread", f_.query_thread(&level));
    }
    if constexpr (std::is_same_v<Abi, StandardAbi>) {
      call("MPI_Comm_create_errhandler", f_.comm_create_errhandler, &return_error<Handle>, &errors_return_);
    }
    for (const Predefined comm : {kWorld, kSelf}) {
      if (ours) call("MPI_Comm_set_errhandler", f_.comm_set_errhandler, predefined_[comm], errors_return_);
    }
    serves_all_threads_ = level >= Abi::thread_multiple;
    return ours;
  }
  bool serves_all_threads() const override { return serves_all_threads_; }
  void finalize() override { call("MPI_Finalize", f_.finalize); }

  int world_rank() const override { return number("MPI_Comm_rank", f_.comm_rank); }
  int world_size() const override { return number("MPI_Comm_size", f_.comm_size); }
  int tag_upper_bound() const override {
    const int* value = nullptr;
    int found = 0;
    call("MPI_Comm_get_attr", f_.comm_get_attr, predefined_[kWorld], Abi::tag_ub, static_cast<void*>(&value), &found);
    return found != 0 ? *value : kGuaranteedTag;
  }

  Comm create(std::span<const int> world_ranks, int tag) override {
    Owned all(f_.group_free);
    Owned some(f_.group_free);
    Handle comm{};
    call("MPI_Comm_group", f_.comm_group, predefined_[kWorld], &all.handle);
    const int count = static_cast<int>(world_ranks.size());
    call("MPI_Group_incl", f_.group_incl, all.handle, count, world_ranks.data(), &some.handle);
    call("MPI_Comm_create_group", f_.comm_create_group, predefined_[kWorld], some.handle, tag, &comm);
    return with_errors_returned(comm);
  }
  Comm duplicate(Comm comm) override {
    Handle copy{};
    call("MPI_Comm_dup", f_.comm_dup, of(comm), &copy);
    return with_errors_returned(copy);
  }
  void free(Comm comm) override {
    Handle handle = of(comm);
    call("MPI_Comm_free", f_.comm_free, &handle);
  }
  // A probe that finds a message returns without moving anything, so this one looks for a tag that nothing here uses.
  void progress() override {
    int found = 0;
    Status status{};
    const Handle world = predefined_[kWorld];
    const int code = f_.iprobe(Abi::any_source, kGuaranteedTag, world, &found, &status);
    if (code == 0 || !failures_) return check("MPI_Iprobe", code);
    failures_->failure_ack(world);  // without that, later probes fail before they move anything
  }

  bool survives_failures() const override { return failures_.has_value(); }
  void revoke(Comm comm) override {
    if (failures_) call("MPIX_Comm_revoke", failures_->revoke, of(comm));
  }
  bool is_revoked(Comm comm) override {
    int flag = 0;
    if (failures_) call("MPIX_Comm_is_revoked", failures_->is_revoked, of(comm), &flag);
    return flag != 0;
  }
  int failed_rank(Comm comm) override {
    if (!failures_) return -1;
    Owned failed(f_.group_free);
    Owned all(f_.group_free);
    call("MPIX_Comm_get_failed", failures_->get_failed, of(comm), &failed.handle);
    call("MPI_Comm_group", f_.comm_group, of(comm), &all.handle);
    int count = 0;
    call("MPI_Group_size", failures_->group_size, failed.handle, &count);
    if (count == 0) return -1;
    const int first = 0;
    int rank = -1;
    call("MPI_Group_translate_ranks", failures_->group_translate_ranks, failed.handle, 1, &first, all.handle, &rank);
    return rank;
  }

  Request isend(const void* data, uint64_t bytes, int peer, int tag, Comm comm) override {
    Handle request = predefined_[kRequestNull];
    with_bytes(bytes, [&](int count, Handle type) {
      call("MPI_Isend", f_.isend, data, count, type, peer, tag, of(comm), &request);
    });
    return Request{number_of(request)};
  }
  Request irecv(void* data, uint64_t bytes, int peer, int tag, Comm comm) override {
    Handle request = predefined_[kRequestNull];
    with_bytes(bytes, [&](int count, Handle type) {
      call("MPI_Irecv", f_.irecv, data, count, type, source_of(peer), tag_of(tag), of(comm), &request);
    });
    return Request{number_of(request)};
  }
  void cancel(Request request) override {
    Handle handle = handle_of<Handle>(static_cast<uintptr_t>(request));
    call("MPI_Cancel", f_.cancel, &handle);
  }
  std::optional<Message> improbe(int peer, int tag, Comm comm, Envelope* envelope) override {
    int found = 0;
    Handle handle{};
    Status status{};
    call("MPI_Improbe", f_.improbe, source_of(peer), tag_of(tag), of(comm), &found, &handle, &status);
    if (found == 0) return std::nullopt;
    const Message message{number_of(handle)};
    try {
      *envelope = envelope_of(status);
    } catch (const sdk::Failure&) {
      drop(message);
      throw;
    }
    return message;
  }
  Request imrecv(void* data, uint64_t bytes, Message message) override {
    Handle handle = handle_of<Handle>(static_cast<uintptr_t>(message));
    Handle request = predefined_[kRequestNull];
    with_bytes(bytes,
               [&](int count, Handle type) { call("MPI_Imrecv", f_.imrecv, data, count, type, &handle, &request); });
    return Request{number_of(request)};
  }
  bool test(Request& request) override {
    Status status{};
    return test(request, &status);
  }
  bool test_receive(Request& request, Envelope* received) override {
    Status status{};
    if (!test(request, &status)) return false;
    *received = envelope_of(status);
    return true;
  }
  bool test_cancelled(Request& request, std::optional<Envelope>* received) override {
    Status status{};
    if (!test(request, &status)) return false;
    int cancelled = 0;
    call("MPI_Test_cancelled", f_.test_cancelled, &status, &cancelled);
    received->reset();
    if (cancelled == 0) received->emplace(envelope_of(status));
    return true;
  }

  uint64_t max_count() const override { return max_count_; }
  Request start(const CollectiveCall& c) override {
    Handle request = predefined_[kRequestNull];
    const bool is_wide = wide_ && needs_wide(c);
    check(name_of(c.kind), is_wide ? start(*wide_, c, &request) : start(narrow_, c, &request));
    return Request{number_of(request)};
  }

 private:
  static constexpr int kGuaranteedTag = 32767;  // of every MPI, by the standard

  // A group, derived type or communicator of MPI. The destructor frees it.
  struct Owned {
    explicit Owned(int (*function)(Handle*)) : free(function) {}
    ~Owned() {
      if (handle != Handle{}) free(&handle);
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;

    int (*const free)(Handle*);
    Handle handle{};
  };

  static int source_of(int peer) { return peer == kAnySource ? Abi::any_source : peer; }
  static int tag_of(int tag) { return tag == kAnyTag ? Abi::any_tag : tag; }
  static Handle of(Comm comm) { return handle_of<Handle>(static_cast<uintptr_t>(comm)); }
  static const char* name_of(uint32_t kind) { return sdk::op_name(kind); }

  bool test(Request& request, Status* status) const {
    Handle handle = handle_of<Handle>(static_cast<uintptr_t>(request));
    int done = 0;
    const int code = f_.test(&handle, &done, status);
    if (handle == predefined_[kRequestNull]) request = Request{};
    check("MPI_Test", code);
    return done != 0;
  }
  Envelope envelope_of(const Status& status) const {
    int64_t bytes = 0;
    call("MPI_Get_elements_x", f_.get_elements_x, &status, predefined_[kByte], &bytes);
    return {status.source, status.tag, static_cast<uint64_t>(bytes)};
  }
  // MPI keeps no memory for a message of which nothing is received.
  void drop(Message message) noexcept {
    try {
      Request request = imrecv(nullptr, 0, message);
      test(request);
    } catch (const std::exception&) {
      // The failure that the caller reports came first. Longer messages are truncated.
    }
  }

  template <typename Function, typename... Arguments>
  void call(const char* name, Function function, Arguments... arguments) const {
    check(name, function(arguments...));
  }
  void check(const char* name, int code) const {
    if (code != 0) fail(name, code);
  }
  [[noreturn, gnu::cold, gnu::noinline]] void fail(const char* name, int code) const {
    std::string text(Abi::error_text_size, '\0');
    int size = 0;
    f_.error_string(code, text.data(), &size);
    text.resize(static_cast<size_t>(size));
    for (char& c : text) c = c == '\n' ? ' ' : c;
    const bool is_lost = failures_ && code >= Abi::first_process_failure && code <= Abi::last_process_failure;
    throw sdk::Failure(is_lost ? BP_PEER_LOST : BP_INTERNAL, std::string("mpi: ") + name + " failed: " + text, -1,
                       code);
  }
  uint64_t find_max_count() const {
    if (!wide_) return static_cast<uint64_t>(max_int_count_);
    // These have the functions, but the operations fail beyond an int.
    const std::string text = version();
    const bool is_faulty = text.starts_with("MPICH Version: 4.0") || text.starts_with("Intel");
    return is_faulty ? std::numeric_limits<int>::max() : std::numeric_limits<int64_t>::max();
  }
  bool flag(int (*function)(int*)) const {
    int value = 0;
    function(&value);
    return value != 0;
  }
  int number(const char* name, int (*function)(Handle, int*)) const {
    int value = 0;
    call(name, function, predefined_[kWorld], &value);
    return value;
  }
  Comm with_errors_returned(Handle comm) {
    Owned made(f_.comm_free);
    made.handle = comm;
    call("MPI_Comm_set_errhandler", f_.comm_set_errhandler, comm, errors_return_);
    made.handle = Handle{};
    return Comm{number_of(comm)};
  }

  // Calls `transfer` with a count and a type of so many bytes, also of more than an int counts.
  template <typename Transfer>
  void with_bytes(uint64_t bytes, const Transfer& transfer) const {
    const Handle byte = predefined_[kByte];
    if (bytes <= static_cast<uint64_t>(max_int_count_)) return transfer(static_cast<int>(bytes), byte);
    const auto block = static_cast<int>(std::bit_floor(static_cast<uint32_t>(max_int_count_)));
    const uint64_t blocks = bytes / static_cast<uint64_t>(block);
    const std::array<int, 2> counts = {static_cast<int>(blocks),
                                       static_cast<int>(bytes % static_cast<uint64_t>(block))};
    const std::array<intptr_t, 2> displs = {0, static_cast<intptr_t>(blocks) * block};
    Owned block_type(f_.type_free);
    Owned type(f_.type_free);  // freed after the transfer, if it has begun
    call("MPI_Type_contiguous", f_.type_contiguous, block, byte, &block_type.handle);
    const std::array<Handle, 2> types = {block_type.handle, byte};
    call("MPI_Type_create_struct", f_.type_create_struct, 2, counts.data(), displs.data(), types.data(), &type.handle);
    call("MPI_Type_commit", f_.type_commit, &type.handle);
    transfer(1, type.handle);
  }

  bool needs_wide(const CollectiveCall& c) const {
    const auto most = static_cast<uint64_t>(max_int_count_);
    if (c.count > most) return true;
    return c.blocks != nullptr && (end_of(c.blocks->in_counts, c.blocks->in_displs) > most ||
                                   end_of(c.blocks->out_counts, c.blocks->out_displs) > most);
  }

  // The blocks' numbers as a function takes them.
  static std::array<const int64_t*, 4> numbers_of(Blocks& blocks, int64_t) {
    return {blocks.in_counts.data(), blocks.in_displs.data(), blocks.out_counts.data(), blocks.out_displs.data()};
  }
  static std::array<const int*, 4> numbers_of(Blocks& blocks, int) {
    const auto narrow = [](const Blocks::Numbers& wide) { return std::vector<int>(wide.begin(), wide.end()); };
    blocks.narrow = {narrow(blocks.in_counts), narrow(blocks.in_displs), narrow(blocks.out_counts),
                     narrow(blocks.out_displs)};
    return {blocks.narrow[0].data(), blocks.narrow[1].data(), blocks.narrow[2].data(), blocks.narrow[3].data()};
  }

  template <typename Count>
  int start(const CollectiveFunctions<Abi, Count>& f, const CollectiveCall& c, Handle* request) const {
    const Handle type = predefined_[c.type];
    const Handle op = predefined_[c.op];
    const Handle comm = of(c.comm);
    const auto count = static_cast<Count>(c.count);
    std::array<const Count*, 4> numbers{};
    if (c.blocks != nullptr) numbers = numbers_of(*c.blocks, Count{});
    const auto [in_counts, in_displs, out_counts, out_displs] = numbers;
    switch (c.kind) {
      case BP_BARRIER:
        return f_.ibarrier(comm, request);
      case BP_BROADCAST:
        return f.ibcast(c.out, count, type, c.root, comm, request);
      case BP_REDUCE:
        return f.ireduce(c.in, c.out, count, type, op, c.root, comm, request);
      case BP_ALL_REDUCE:
        return f.iallreduce(c.in == c.out ? pointer_constant(Abi::in_place) : c.in, c.out, count, type, op, comm,
                            request);
      case BP_REDUCE_SCATTER:
        return f.ireduce_scatter_block(c.in, c.out, count, type, op, comm, request);
      case BP_REDUCE_SCATTERV:
        return f.ireduce_scatter(c.in, c.out, in_counts, type, op, comm, request);
      case BP_GATHER:
        return f.igather(c.in, count, type, c.out, count, type, c.root, comm, request);
      case BP_GATHERV:
        return f.igatherv(c.in, count, type, c.out, out_counts, out_displs, type, c.root, comm, request);
      case BP_SCATTER:
        return f.iscatter(c.in, count, type, c.out, count, type, c.root, comm, request);
      case BP_SCATTERV:
        return f.iscatterv(c.in, in_counts, in_displs, type, c.out, count, type, c.root, comm, request);
      case BP_ALL_GATHER:
        return f.iallgather(c.in, count, type, c.out, count, type, comm, request);
      case BP_ALL_GATHERV:
        return f.iallgatherv(c.in, count, type, c.out, out_counts, out_displs, type, comm, request);
      case BP_ALL_TO_ALL:
        return f.ialltoall(c.in, count, type, c.out, count, type, comm, request);
      case BP_ALL_TO_ALLV:
        return f.ialltoallv(c.in, in_counts, in_displs, type, c.out, out_counts, out_displs, type, comm, request);
      default:
        throw sdk::Failure(BP_UNSUPPORTED, std::string("mpi: there is no native ") + name_of(c.kind));
    }
  }

  const int max_int_count_;
  const std::array<Handle, kPredefinedCount> predefined_;
  Handle errors_return_ = predefined_[kErrorsReturn];
  const Functions<Abi> f_;
  const CollectiveFunctions<Abi, int> narrow_;
  std::optional<CollectiveFunctions<Abi, int64_t>> wide_;  // of MPI 4
  std::optional<FailureFunctions<Abi>> failures_;          // if they are in use
  uint64_t max_count_ = 0;
  bool serves_all_threads_ = false;
};

}  // namespace

std::unique_ptr<Api> make_api(const Library& library, int max_int_count) {
  switch (library.abi) {
    case AbiKind::kStandard:
      return std::make_unique<ApiOf<StandardAbi>>(library, max_int_count);
    case AbiKind::kOpenMpi:
      return std::make_unique<ApiOf<OpenMpiAbi>>(library, max_int_count);
    default:
      return std::make_unique<ApiOf<MpichAbi>>(library, max_int_count);
  }
}

}  // namespace backplane::mpi
