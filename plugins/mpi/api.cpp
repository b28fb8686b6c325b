// SPDX-License-Identifier: Apache-2.0
#include "api.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

namespace backplane::mpi {
namespace {

// The functions that are used, with the types of an ABI.
template <typename Abi>
struct Functions {
  using Handle = typename Abi::Handle;
  using Status = typename Abi::Status;
  using Counts = const int*;

  int (*get_library_version)(char*, int*);
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*init_thread)(int*, char***, int, int*);
  int (*query_thread)(int*);
  int (*finalize)();
  int (*error_string)(int, char*, int*);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*comm_get_attr)(Handle, int, void*, int*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*comm_group)(Handle, Handle*);
  int (*group_incl)(Handle, int, const int*, Handle*);
  int (*group_free)(Handle*);
  int (*comm_create_group)(Handle, Handle, int, Handle*);
  int (*comm_dup)(Handle, Handle*);
  int (*comm_free)(Handle*);
  int (*iprobe)(int, int, Handle, int*, Status*);
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*improbe)(int, int, Handle, int*, Handle*, Status*);
  int (*imrecv)(void*, int, Handle, Handle*, Handle*);
  int (*get_count)(const Status*, Handle, int*);
  int (*test)(Handle*, int*, Status*);
  int (*ibarrier)(Handle, Handle*);
  int (*ibcast)(void*, int, Handle, int, Handle, Handle*);
  int (*ireduce)(const void*, void*, int, Handle, Handle, int, Handle, Handle*);
  int (*iallreduce)(const void*, void*, int, Handle, Handle, Handle, Handle*);
  int (*igather)(const void*, int, Handle, void*, int, Handle, int, Handle, Handle*);
  int (*igatherv)(const void*, int, Handle, void*, Counts, Counts, Handle, int, Handle, Handle*);
  int (*iscatter)(const void*, int, Handle, void*, int, Handle, int, Handle, Handle*);
  int (*iscatterv)(const void*, Counts, Counts, Handle, void*, int, Handle, int, Handle, Handle*);
  int (*iallgather)(const void*, int, Handle, void*, int, Handle, Handle, Handle*);
  int (*iallgatherv)(const void*, int, Handle, void*, Counts, Counts, Handle, Handle, Handle*);
  int (*ireduce_scatter_block)(const void*, void*, int, Handle, Handle, Handle, Handle*);
  int (*ireduce_scatter)(const void*, void*, Counts, Handle, Handle, Handle, Handle*);
  int (*ialltoall)(const void*, int, Handle, void*, int, Handle, Handle, Handle*);
  int (*ialltoallv)(const void*, Counts, Counts, Handle, void*, Counts, Counts, Handle, Handle, Handle*);
};

template <typename Function>
void find(const Library& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.symbol(name));
}

template <typename Abi>
void find_management(const Library& library, Functions<Abi>& f) {
  find(library, "MPI_Get_library_version", f.get_library_version);
  find(library, "MPI_Initialized", f.initialized);
  find(library, "MPI_Finalized", f.finalized);
  find(library, "MPI_Init_thread", f.init_thread);
  find(library, "MPI_Query_thread", f.query_thread);
  find(library, "MPI_Finalize", f.finalize);
  find(library, "MPI_Error_string", f.error_string);
  find(library, "MPI_Comm_rank", f.comm_rank);
  find(library, "MPI_Comm_size", f.comm_size);
  find(library, "MPI_Comm_get_attr", f.comm_get_attr);
  find(library, "MPI_Comm_set_errhandler", f.comm_set_errhandler);
  find(library, "MPI_Comm_group", f.comm_group);
  find(library, "MPI_Group_incl", f.group_incl);
  find(library, "MPI_Group_free", f.group_free);
  find(library, "MPI_Comm_create_group", f.comm_create_group);
  find(library, "MPI_Comm_dup", f.comm_dup);
  find(library, "MPI_Comm_free", f.comm_free);
}

template <typename Abi>
void find_operations(const Library& library, Functions<Abi>& f) {
  find(library, "MPI_Iprobe", f.iprobe);
  find(library, "MPI_Isend", f.isend);
  find(library, "MPI_Improbe", f.improbe);
  find(library, "MPI_Imrecv", f.imrecv);
  find(library, "MPI_Get_count", f.get_count);
  find(library, "MPI_Test", f.test);
  find(library, "MPI_Ibarrier", f.ibarrier);
  find(library, "MPI_Ibcast", f.ibcast);
  find(library, "MPI_Ireduce", f.ireduce);
  find(library, "MPI_Iallreduce", f.iallreduce);
  find(library, "MPI_Igather", f.igather);
  find(library, "MPI_Igatherv", f.igatherv);
  find(library, "MPI_Iscatter", f.iscatter);
  find(library, "MPI_Iscatterv", f.iscatterv);
  find(library, "MPI_Iallgather", f.iallgather);
  find(library, "MPI_Iallgatherv", f.iallgatherv);
  find(library, "MPI_Ireduce_scatter_block", f.ireduce_scatter_block);
  find(library, "MPI_Ireduce_scatter", f.ireduce_scatter);
  find(library, "MPI_Ialltoall", f.ialltoall);
  find(library, "MPI_Ialltoallv", f.ialltoallv);
}

// Handles as numbers and back.
template <typename Handle>
uintptr_t number_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<uintptr_t>(handle);
  } else {
    return static_cast<uint32_t>(handle);
  }
}
template <typename Handle>
Handle handle_of(uintptr_t number) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(number);
  } else {
    return static_cast<Handle>(static_cast<uint32_t>(number));
  }
}

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

  explicit ApiOf(const Library& library) : predefined_(predefined_of<Abi>(library)) {
    find_management(library, f_);
    find_operations(library, f_);
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
      for (const Predefined comm : {kWorld, kSelf}) {
        check("MPI_Comm_set_errhandler", f_.comm_set_errhandler(predefined_[comm], predefined_[kErrorsReturn]));
      }
    } else {
      check("MPI_Query_thread", f_.query_thread(&level));
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
    Members all(f_.group_free);
    Members some(f_.group_free);
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
    call("MPI_Iprobe", f_.iprobe, Abi::any_source, kGuaranteedTag, predefined_[kWorld], &found, &status);
  }

  Request isend(const void* data, int bytes, int peer, int tag, Comm comm) override {
    Handle request = predefined_[kRequestNull];
    call("MPI_Isend", f_.isend, data, bytes, predefined_[kByte], peer, tag, of(comm), &request);
    return Request{number_of(request)};
  }
  std::optional<Message> improbe(int peer, int tag, Comm comm, Envelope* envelope) override {
    int found = 0;
    Handle message{};
    Status status{};
    const int source = peer == kAnySource ? Abi::any_source : peer;
    const int wanted = tag == kAnyTag ? Abi::any_tag : tag;
    call("MPI_Improbe", f_.improbe, source, wanted, of(comm), &found, &message, &status);
    if (found == 0) return std::nullopt;
    call("MPI_Get_count", f_.get_count, static_cast<const Status*>(&status), predefined_[kByte], &envelope->bytes);
    envelope->source = status.source;
    envelope->tag = status.tag;
    return Message{number_of(message)};
  }
  Request imrecv(void* data, int bytes, Message message) override {
    Handle handle = handle_of<Handle>(static_cast<uintptr_t>(message));
    Handle request = predefined_[kRequestNull];
    call("MPI_Imrecv", f_.imrecv, data, bytes, predefined_[kByte], &handle, &request);
    return Request{number_of(request)};
  }
  bool test(Request& request) override {
    Handle handle = handle_of<Handle>(static_cast<uintptr_t>(request));
    int done = 0;
    Status status{};
    const int code = f_.test(&handle, &done, &status);
    if (handle == predefined_[kRequestNull]) request = Request{};
    check("MPI_Test", code);
    return done != 0;
  }

  Request start(const CollectiveCall& c) override {
    Handle request = predefined_[kRequestNull];
    check(name_of(c.kind), moves_blocks(c.kind) ? start_blocks(c, &request) : start_whole(c, &request));
    return Request{number_of(request)};
  }

 private:
  static constexpr int kGuaranteedTag = 32767;  // of every MPI, by the standard

  // A group of MPI. The destructor frees it.
  struct Members {
    explicit Members(int (*free)(Handle*)) : free_group(free) {}
    ~Members() {
      if (handle != Handle{}) free_group(&handle);
    }
    Members(const Members&) = delete;
    Members& operator=(const Members&) = delete;

    int (*const free_group)(Handle*);
    Handle handle{};
  };

  static Handle of(Comm comm) { return handle_of<Handle>(static_cast<uintptr_t>(comm)); }
  static const char* name_of(uint32_t kind) { return sdk::op_name(kind); }

  template <typename Function, typename... Arguments>
  void call(const char* name, Function function, Arguments... arguments) const {
    check(name, function(arguments...));
  }
  void check(const char* name, int code) const {
    if (code == 0) return;
    std::string text(Abi::error_text_size, '\0');
    int size = 0;
    f_.error_string(code, text.data(), &size);
    text.resize(static_cast<size_t>(size));
    for (char& c : text) c = c == '\n' ? ' ' : c;
    throw sdk::Failure(BP_INTERNAL, std::string("mpi: ") + name + " failed: " + text, -1, code);
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
    call("MPI_Comm_set_errhandler", f_.comm_set_errhandler, comm, predefined_[kErrorsReturn]);
    return Comm{number_of(comm)};
  }

  static bool moves_blocks(uint32_t kind) { return (BP_REDUCTIONS & BP_BIT(kind)) == 0 && kind > BP_BROADCAST; }

  int start_whole(const CollectiveCall& c, Handle* request) const {
    const Handle type = predefined_[c.type];
    const Handle op = predefined_[c.op];
    switch (c.kind) {
      case BP_BARRIER:
        return f_.ibarrier(of(c.comm), request);
      case BP_BROADCAST:
        return f_.ibcast(c.out, c.count, type, c.root, of(c.comm), request);
      case BP_REDUCE:
        return f_.ireduce(c.in, c.out, c.count, type, op, c.root, of(c.comm), request);
      case BP_ALL_REDUCE:
        return f_.iallreduce(pointer_constant(Abi::in_place), c.out, c.count, type, op, of(c.comm), request);
      case BP_REDUCE_SCATTER:
        return f_.ireduce_scatter_block(c.in, c.out, c.count, type, op, of(c.comm), request);
      case BP_REDUCE_SCATTERV:
        return f_.ireduce_scatter(c.in, c.out, c.in_counts, type, op, of(c.comm), request);
      default:
        throw sdk::Failure(BP_UNSUPPORTED, std::string("mpi: there is no native ") + name_of(c.kind));
    }
  }
  int start_blocks(const CollectiveCall& c, Handle* request) const {
    const Handle type = predefined_[c.type];
    const Handle comm = of(c.comm);
    switch (c.kind) {
      case BP_GATHER:
        return f_.igather(c.in, c.count, type, c.out, c.count, type, c.root, comm, request);
      case BP_GATHERV:
        return f_.igatherv(c.in, c.count, type, c.out, c.out_counts, c.out_displs, type, c.root, comm, request);
      case BP_SCATTER:
        return f_.iscatter(c.in, c.count, type, c.out, c.count, type, c.root, comm, request);
      case BP_SCATTERV:
        return f_.iscatterv(c.in, c.in_counts, c.in_displs, type, c.out, c.count, type, c.root, comm, request);
      case BP_ALL_GATHER:
        return f_.iallgather(c.in, c.count, type, c.out, c.count, type, comm, request);
      case BP_ALL_GATHERV:
        return f_.iallgatherv(c.in, c.count, type, c.out, c.out_counts, c.out_displs, type, comm, request);
      case BP_ALL_TO_ALL:
        return f_.ialltoall(c.in, c.count, type, c.out, c.count, type, comm, request);
      case BP_ALL_TO_ALLV:
        return f_.ialltoallv(c.in, c.in_counts, c.in_displs, type, c.out, c.out_counts, c.out_displs, type, comm,
                             request);
      default:
        throw sdk::Failure(BP_UNSUPPORTED, std::string("mpi: there is no native ") + name_of(c.kind));
    }
  }

  const std::array<Handle, kPredefinedCount> predefined_;
  Functions<Abi> f_ = {};
  bool serves_all_threads_ = false;
};

}  // namespace

std::unique_ptr<Api> make_api(const Library& library) {
  switch (library.abi) {
    case AbiKind::kStandard:
      return std::make_unique<ApiOf<StandardAbi>>(library);
    case AbiKind::kOpenMpi:
      return std::make_unique<ApiOf<OpenMpiAbi>>(library);
    default:
      return std::make_unique<ApiOf<MpichAbi>>(library);
  }
}

}  // namespace backplane::mpi
