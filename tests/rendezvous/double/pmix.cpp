// SPDX-License-Identifier: Apache-2.0
//
// A test double of libpmix.so.2, without a server. One function of it hangs.
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  std::string closed_for;
};

Gate& gate() {
  static Gate* const instance = new Gate;
  return *instance;
}

int pass(const char* function) {
  std::unique_lock lock(gate().mutex);
  gate().opened.wait(lock, [function] { return gate().closed_for != function; });
  return 0;
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

// The function that hangs until another call; "": none.
EXPORTED void pmix_double_hang_in(const char* function) {
  const std::lock_guard lock(gate().mutex);
  gate().closed_for = function;
  gate().opened.notify_all();
}
EXPORTED int PMIx_Init(void*, void*, size_t) { return pass("PMIx_Init"); }
EXPORTED int PMIx_Finalize(const void*, size_t) { return pass("PMIx_Finalize"); }
EXPORTED int PMIx_Put(uint8_t, const char*, void*) { return pass("PMIx_Put"); }
EXPORTED int PMIx_Commit() { return pass("PMIx_Commit"); }
EXPORTED int PMIx_Fence_nb(const void*, size_t, const void*, size_t, void (*done)(int, void*), void* data) {
  done(0, data);
  return 0;
}
EXPORTED int PMIx_Get_nb(const void*, const char* key, const void*, size_t, void (*done)(int, void*, void*),
                         void* data) {
  struct Value {
    uint16_t type;
    union {
      const char* string;
      char room[64];
    };
  } value = {3, {key}};  // a string
  done(0, &value, data);
  return 0;
}
}
