// SPDX-License-Identifier: Apache-2.0
#include "library.hpp"

#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <sys/auxv.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "signals.hpp"

namespace backplane::mpi {
namespace {

constexpr const char* kOpenMpiName = "libmpi.so.40";
// The last is Debian's name of libmpi.so.12. MPICH 5.0.1 calls its libmpi_abi.so.1 so.0.
constexpr std::array kOtherNames = {"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12"};

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

// Open MPI last under launchers of others, first under its own and where nothing is known.
std::vector<const char*> names() {
  std::vector<const char*> names(kOtherNames.begin(), kOtherNames.end());
  const bool is_other = is_set("PMI_RANK") && !is_set("OMPI_COMM_WORLD_RANK");
  names.insert(is_other ? names.end() : names.begin(), kOpenMpiName);
  return names;
}

void* open(const char* name, int flags = 0) { return ::dlopen(name, RTLD_NOW | RTLD_LOCAL | flags); }

std::string last_error() {
  const char* const text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

// The handle of the library that this process uses, or NULL. Python loads MPI outside the global scope (RTLD_LOCAL).
void* loaded_library() {
  Dl_info info{};
  if (void* const function = ::dlsym(RTLD_DEFAULT, "MPI_Init_thread"); function != nullptr) {
    const bool is_known = ::dladdr(function, &info) != 0 && info.dli_fname != nullptr;
    if (void* const handle = is_known ? open(info.dli_fname, RTLD_NOLOAD) : nullptr; handle != nullptr) return handle;
    throw sdk::Failure(BP_UNSUPPORTED, std::string("mpi: this process has an MPI already, in ") +
                                           (is_known ? info.dli_fname : "an unknown file") +
                                           ", which cannot be used because it is not a shared library; link the "
                                           "program with MPI's shared library");
  }
  for (const char* name : names()) {
    if (void* const handle = open(name, RTLD_NOLOAD); handle != nullptr) return handle;
  }
  return nullptr;
}

// Libraries of MPI obey variables that name components and files.
void refuse_to_load_with_more_rights() {
  if (::getauxval(AT_SECURE) == 0) return;
  throw sdk::Failure(BP_UNSUPPORTED,
                     "mpi: a program with more rights than its caller (set-uid) does not load MPI, which obeys the "
                     "caller's variables; link the program with MPI, or choose another backend");
}

const link_map* map_of(void* handle) {
  link_map* map = nullptr;
  return ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

// The name that the library was linked with (DT_SONAME); else its file name.
std::string soname(const link_map& map) {
  const char* strings = nullptr;
  size_t offset = 0;
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SONAME) offset = entry->d_un.d_val;
  }
  if (strings != nullptr && offset != 0) return strings + offset;
  const std::string file = map.l_name;
  return file.substr(file.rfind('/') + 1);
}

// A library of the standard ABI has a name of its own: MPICH 5's libmpi.so exports the same functions with other types.
AbiKind abi_of(void* handle, const link_map& map) {
  if (soname(map).starts_with("libmpi_abi.")) return AbiKind::kStandard;
  if (::dlsym(handle, "ompi_mpi_comm_world") != nullptr) return AbiKind::kOpenMpi;
  if (::dlsym(handle, "MPIR_Dup_fn") != nullptr) return AbiKind::kMpich;
  throw sdk::Failure(BP_UNSUPPORTED, std::string("mpi: ") + map.l_name +
                                         " has neither the ABI of MPI 5, nor Open MPI's, nor MPICH's; set "
                                         "BACKPLANE_MPI_LIBRARY or the option library to another MPI");
}

void* open_named(const std::string& name) {
  if (void* const handle = open(name.c_str(), RTLD_NOLOAD); handle != nullptr) return handle;
  refuse_to_load_with_more_rights();
  if (void* const handle = open(name.c_str()); handle != nullptr) return handle;
  throw sdk::Failure(BP_UNSUPPORTED, "mpi: the library of MPI that was asked for cannot be loaded: " + last_error() +
                                         "; correct BACKPLANE_MPI_LIBRARY or the option library");
}

void* open_first() {
  refuse_to_load_with_more_rights();
  std::string tried;
  for (const char* name : names()) {
    if (void* const handle = open(name); handle != nullptr) return handle;
    tried += (tried.empty() ? "" : ", ") + std::string(name);
  }
  throw sdk::Failure(BP_UNSUPPORTED, "mpi: no MPI library found (" + tried +
                                         "); install Open MPI or MPICH, or set BACKPLANE_MPI_LIBRARY or the option "
                                         "library to its file");
}

}  // namespace

void* Library::symbol(const char* name) const {
  void* const address = ::dlsym(handle, name);
  if (address != nullptr) return address;
  throw sdk::Failure(BP_UNSUPPORTED, "mpi: " + file + " has no " + name + "; a library of MPI 3.1 or newer is needed");
}

void* Library::variable(const char* name) const {
  void* const address = ::dlsym(RTLD_DEFAULT, name);
  Dl_info info = {};
  link_map* map = nullptr;
  const bool is_found =
      address != nullptr && ::dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0;
  const bool is_in_program = is_found && map != nullptr && *map->l_name == '\0';
  return is_in_program ? address : symbol(name);
}

bool Library::has(const char* name) const { return ::dlsym(handle, name) != nullptr; }

Library open_library(const std::string& named) {
  const SignalHandlersKept kept;
  Library library;
  const char* const variable = ::secure_getenv("BACKPLANE_MPI_LIBRARY");  // ignored in a set-uid program
  const std::string name = named.empty() && variable != nullptr ? variable : named;
  library.handle = name.empty() ? loaded_library() : open_named(name);
  if (library.handle == nullptr) library.handle = open_first();
  const link_map* const map = map_of(library.handle);
  if (map == nullptr) throw sdk::Failure(BP_UNSUPPORTED, "mpi: the loader does not know the file: " + last_error());
  library.file = map->l_name;
  library.abi = abi_of(library.handle, *map);
  return library;
}

void prepare(const Library& library) {
  if (library.abi == AbiKind::kOpenMpi) ::dlopen(library.file.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

bool has_launcher(AbiKind abi) {
  const bool has_pmi = is_set("PMI_FD") || is_set("PMI_PORT") || is_set("PMI_RANK");
  if (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK")) return true;
  return has_pmi && (abi != AbiKind::kOpenMpi || is_set("SLURM_JOB_ID"));  // Open MPI speaks PMI only to Slurm
}

bool is_ulfm_enabled() {
  const char* const value = std::getenv("OMPI_MCA_mpi_ft_enable");
  return value != nullptr && (std::string(value) == "1" || std::string(value) == "true");
}

void check_launcher_connection() {
  const char* const text = std::getenv("PMI_FD");
  if (text == nullptr) return;
  pollfd connection = {std::atoi(text), POLLRDHUP, 0};
  if (::poll(&connection, 1, 0) == 0) return;
  throw sdk::Failure(
      BP_UNSUPPORTED,
      "mpi: the connection to the launcher (PMI_FD), which MPI needs, has been closed: the ranks have "
      "met over it for another backend; set MASTER_ADDR and MASTER_PORT for all ranks, or use another init method");
}

std::string launcher_job() {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const char* const value = std::getenv(name); value != nullptr) return value;
  }
  return {};
}

}  // namespace backplane::mpi
