// SPDX-License-Identifier: Apache-2.0
//
// The Python interpreter of this process, and the functions of bridge.py.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "backplane/sdk/sdk.hpp"

namespace backplane::c10d {

extern const char* const kBridgeSource;  // the text of bridge.py

// The layouts of the following structs are repeated in bridge.py.
struct Opening {
  const char* backend;  // of torch.distributed
  const char* module;   // imported first; may be empty
  const bp_host* host;  // its store is used until the call of `open` returns
  int64_t timeout_ns;
  int32_t rank;
  int32_t world_size;
  int64_t handle;  // the result
};

struct CollectiveCall {
  uint32_t kind;
  uint32_t dtype;
  uint32_t reduce_op;
  int32_t root;
  const void* input;
  uint64_t input_bytes;
  void* output;
  uint64_t output_bytes;
};

// All functions take the GIL. They return a status and fill in the error.
struct Table {
  int32_t (*open)(Opening* opening, bp_error* err);  // blocks for the other ranks
  // Block until the operation has ended; the tag is always the same.
  int32_t (*send)(int64_t handle, int32_t peer, const void* data, uint64_t size, bp_error* err);
  int32_t (*recv)(int64_t handle, int32_t peer, void* data, uint64_t size, bp_error* err);
  int32_t (*collect)(int64_t handle, const CollectiveCall* call, bp_error* err);
  void (*close)(int64_t handle);  // makes blocked calls fail, where the backend of torch can
  void (*drop)(int64_t handle);   // destroys torch's group

  // A program's own Python ends before its process does. bridge.py then sets `has_ended`, closes the groups, and waits
  // a moment until `calls` is 0. No function may be called afterwards.
  mutable std::atomic<int32_t> has_ended;
  mutable std::atomic<int32_t> calls;  // in progress
};

// Exists during a call of a function of the table.
class TableCall {
 public:
  explicit TableCall(const Table& table) : table_(table) { table_.calls.fetch_add(1); }
  ~TableCall() { table_.calls.fetch_sub(1); }
  TableCall(const TableCall&) = delete;
  TableCall& operator=(const TableCall&) = delete;

  bool is_possible() const { return table_.has_ended.load() == 0; }

 private:
  const Table& table_;
};

// Starts the interpreter on its first call, unless the process has one. `python`: a program; empty: that of
// BACKPLANE_PYTHON, else the first python3 of PATH that has a shared library. Later calls return the same table. Throws
// BP_UNSUPPORTED.
const Table& start_python(const std::string& python);

// The program whose library would be opened, and the library. Throws BP_UNSUPPORTED.
std::string describe_python(const std::string& python);

}  // namespace backplane::c10d
