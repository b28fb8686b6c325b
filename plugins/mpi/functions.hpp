// SPDX-License-Identifier: Apache-2.0
//
// The functions of an MPI library that are used, with the types of its ABI.
#pragma once

#include <cstdint>
#include <string>

#include "abi.hpp"
#include "library.hpp"

namespace backplane::mpi {

// MPI's nonblocking collectives. `Count` is int, or that of the functions for large counts (suffix _c, MPI 4), whose
// MPI_Count and MPI_Aint both have 64 bits.
template <typename Abi, typename Count>
struct CollectiveFunctions {
  using Handle = typename Abi::Handle;
  using Counts = const Count*;
  static_assert(sizeof(void*) == sizeof(int64_t));

  int (*ibcast)(void*, Count, Handle, int, Handle, Handle*);
  int (*ireduce)(const void*, void*, Count, Handle, Handle, int, Handle, Handle*);
  int (*iallreduce)(const void*, void*, Count, Handle, Handle, Handle, Handle*);
  int (*igather)(const void*, Count, Handle, void*, Count, Handle, int, Handle, Handle*);
  int (*igatherv)(const void*, Count, Handle, void*, Counts, Counts, Handle, int, Handle, Handle*);
  int (*iscatter)(const void*, Count, Handle, void*, Count, Handle, int, Handle, Handle*);
  int (*iscatterv)(const void*, Counts, Counts, Handle, void*, Count, Handle, int, Handle, Handle*);
  int (*iallgather)(const void*, Count, Handle, void*, Count, Handle, Handle, Handle*);
  int (*iallgatherv)(const void*, Count, Handle, void*, Counts, Counts, Handle, Handle, Handle*);
  int (*ireduce_scatter_block)(const void*, void*, Count, Handle, Handle, Handle, Handle*);
  int (*ireduce_scatter)(const void*, void*, Counts, Handle, Handle, Handle, Handle*);
  int (*ialltoall)(const void*, Count, Handle, void*, Count, Handle, Handle, Handle*);
  int (*ialltoallv)(const void*, Counts, Counts, Handle, void*, Counts, Counts, Handle, Handle, Handle*);

  // Throws BP_UNSUPPORTED if one is missing.
  CollectiveFunctions(const Library& library, const std::string& suffix) {
    const auto find = [&library, &suffix](const char* name, auto& function) {
      library.find((name + suffix).c_str(), function);
    };
    find("MPI_Ibcast", ibcast);
    find("MPI_Ireduce", ireduce);
    find("MPI_Iallreduce", iallreduce);
    find("MPI_Igather", igather);
    find("MPI_Igatherv", igatherv);
    find("MPI_Iscatter", iscatter);
    find("MPI_Iscatterv", iscatterv);
    find("MPI_Iallgather", iallgather);
    find("MPI_Iallgatherv", iallgatherv);
    find("MPI_Ireduce_scatter_block", ireduce_scatter_block);
    find("MPI_Ireduce_scatter", ireduce_scatter);
    find("MPI_Ialltoall", ialltoall);
    find("MPI_Ialltoallv", ialltoallv);
  }
};

// An error handler after which functions return the error. MPICH 5.0.2 numbers MPI_ERRORS_ABORT and MPI_ERRORS_RETURN
// of the standard ABI the other way round.
template <typename Handle>
void return_error(Handle* /*comm*/, int* /*code*/, ...) {}

// Tolerance of failed processes (ULFM).
template <typename Abi>
struct FailureFunctions {
  using Handle = typename Abi::Handle;

  int (*revoke)(Handle);
  int (*is_revoked)(Handle, int*);
  int (*failure_ack)(Handle);
  int (*get_failed)(Handle, Handle*);
  int (*group_size)(Handle, int*);
  int (*group_translate_ranks)(Handle, int, const int*, Handle, int*);

  // Throws BP_UNSUPPORTED if one is missing.
  explicit FailureFunctions(const Library& library) {
    library.find("MPIX_Comm_revoke", revoke);
    library.find("MPIX_Comm_is_revoked", is_revoked);
    library.find("MPIX_Comm_failure_ack", failure_ack);
    library.find("MPIX_Comm_get_failed", get_failed);
    library.find("MPI_Group_size", group_size);
    library.find("MPI_Group_translate_ranks", group_translate_ranks);
  }
};

template <typename Abi>
struct Functions {
  using Handle = typename Abi::Handle;
  using Status = typename Abi::Status;

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
  int (*comm_create_errhandler)(void (*)(Handle*, int*, ...), Handle*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*comm_group)(Handle, Handle*);
  int (*group_incl)(Handle, int, const int*, Handle*);
  int (*group_free)(Handle*);
  int (*comm_create_group)(Handle, Handle, int, Handle*);
  int (*comm_dup)(Handle, Handle*);
  int (*comm_free)(Handle*);
  int (*type_contiguous)(int, Handle, Handle*);
  int (*type_create_struct)(int, const int*, const intptr_t*, const Handle*, Handle*);
  int (*type_commit)(Handle*);
  int (*type_free)(Handle*);
  int (*iprobe)(int, int, Handle, int*, Status*);
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*cancel)(Handle*);
  int (*test_cancelled)(const Status*, int*);
  int (*improbe)(int, int, Handle, int*, Handle*, Status*);
  int (*imrecv)(void*, int, Handle, Handle*, Handle*);
  int (*get_elements_x)(const Status*, Handle, int64_t*);
  int (*test)(Handle*, int*, Status*);
  int (*ibarrier)(Handle, Handle*);

  // Throws BP_UNSUPPORTED if one is missing.
  explicit Functions(const Library& library) {
    library.find("MPI_Get_library_version", get_library_version);
    library.find("MPI_Initialized", initialized);
    library.find("MPI_Finalized", finalized);
    library.find("MPI_Init_thread", init_thread);
    library.find("MPI_Query_thread", query_thread);
    library.find("MPI_Finalize", finalize);
    library.find("MPI_Error_string", error_string);
    library.find("MPI_Comm_rank", comm_rank);
    library.find("MPI_Comm_size", comm_size);
    library.find("MPI_Comm_get_attr", comm_get_attr);
    library.find("MPI_Comm_create_errhandler", comm_create_errhandler);
    library.find("MPI_Comm_set_errhandler", comm_set_errhandler);
    library.find("MPI_Comm_group", comm_group);
    library.find("MPI_Group_incl", group_incl);
    library.find("MPI_Group_free", group_free);
    library.find("MPI_Comm_create_group", comm_create_group);
    library.find("MPI_Comm_dup", comm_dup);
    library.find("MPI_Comm_free", comm_free);
    library.find("MPI_Type_contiguous", type_contiguous);
    library.find("MPI_Type_create_struct", type_create_struct);
    library.find("MPI_Type_commit", type_commit);
    library.find("MPI_Type_free", type_free);
    library.find("MPI_Iprobe", iprobe);
    library.find("MPI_Isend", isend);
    library.find("MPI_Irecv", irecv);
    library.find("MPI_Cancel", cancel);
    library.find("MPI_Test_cancelled", test_cancelled);
    library.find("MPI_Improbe", improbe);
    library.find("MPI_Imrecv", imrecv);
    library.find("MPI_Get_elements_x", get_elements_x);
    library.find("MPI_Test", test);
    library.find("MPI_Ibarrier", ibarrier);
  }
};

}  // namespace backplane::mpi
