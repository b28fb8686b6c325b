// SPDX-License-Identifier: Apache-2.0
//
// The shared library of an MPI: which one is used, and which ABI it has.
#pragma once

#include <string>

#include "backplane/sdk/sdk.hpp"

namespace backplane::mpi {

enum class AbiKind { kStandard, kOpenMpi, kMpich };

struct Library {
  void* handle = nullptr;  // never closed: MPI has threads and exit handlers
  std::string file;        // where the loader found it
  AbiKind abi = AbiKind::kStandard;

  // The address of a symbol. Throws BP_UNSUPPORTED if there is none.
  void* symbol(const char* name) const;
  // The same for a variable. A program that is linked with the library may have a copy, which the library then uses.
  void* variable(const char* name) const;
  bool has(const char* name) const;

  template <typename Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(symbol(name));
  }
};

// Opens the library `named`, a path or a name for the loader. Empty: BACKPLANE_MPI_LIBRARY; else one that the process
// has loaded; else the first known name, beginning with those of the MPI whose launcher started this process. Throws
// BP_UNSUPPORTED with the reason.
Library open_library(const std::string& named);

// Call before MPI is initialised: Open MPI's components find its functions only in the global scope.
void prepare(const Library& library);

// Whether a launcher has started this process that an MPI with this ABI understands, by its environment.
bool has_launcher(AbiKind abi);

// Whether Open MPI was started with --with-ft ulfm.
bool is_ulfm_enabled();

// Throws BP_UNSUPPORTED if the launcher of PMI-1 has closed its connection: MPI would end the process.
void check_launcher_connection();

// The name of the launcher's job, where it has one; else empty.
std::string launcher_job();

}  // namespace backplane::mpi
