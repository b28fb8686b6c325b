// SPDX-License-Identifier: Apache-2.0
//
// A client of PMIx through libpmix.so.2, which the process loads only here. Structures: the PMIx Standard, version 4,
// chapter 3; the parts that are used have been the same since version 2.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "environment.hpp"
#include "error.hpp"
#include "log.hpp"
#include "process.hpp"
#include "rendezvous/address_exchange.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr const char* kLibrary = "libpmix.so.2";
constexpr int kSuccess = 0;
constexpr uint8_t kGlobalScope = 3;
constexpr uint16_t kBool = 1;
constexpr uint16_t kString = 3;

struct PmixProcess {
  std::array<char, 256> job;
  uint32_t rank;
};

struct PmixValue {
  uint16_t type;
  union {
    bool flag;
    char* string;
    std::array<char, 64> room;  // other members are larger
  };
};

struct PmixInfo {
  std::array<char, 512> key;
  uint32_t flags;
  PmixValue value;
};

using GetCallback = void (*)(int status, PmixValue* value, void* data);
using Callback = void (*)(int status, void* data);

template <typename Function>
Function* symbol(void* library, const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(library, name));
  if (found == nullptr) fail(BP_UNSUPPORTED, "{} lacks {}", kLibrary, name);
  return found;
}

// The reply to a call. It arrives on a thread of the library, perhaps after the deadline.
struct Reply {
  std::mutex mutex;
  std::condition_variable arrived;
  bool done = false;
  int status = kSuccess;
  std::string text;
};

// `data`: a std::shared_ptr<Reply> on the heap, which this frees.
void on_text(int status, PmixValue* value, void* data) {
  const std::unique_ptr<std::shared_ptr<Reply>> owner(static_cast<std::shared_ptr<Reply>*>(data));
  Reply& reply = **owner;
  const std::lock_guard lock(reply.mutex);
  reply.status = status;
  if (status == kSuccess && value != nullptr && value->type == kString && value->string != nullptr) {
    reply.text = value->string;
  }
  reply.done = true;
  reply.arrived.notify_all();
}

void on_done(int status, void* data) { on_text(status, nullptr, data); }

void check(const char* name, int status) {
  if (status != kSuccess) fail(BP_UNSUPPORTED, "{} failed with {}", name, status);
}

// Every function that can wait for the launcher runs on a thread of its own, which is detached if it does not return.
class Pmix {
 public:
  explicit Pmix(const Deadline& deadline) : library_(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      const char* const why = ::dlerror();
      fail(BP_UNSUPPORTED, "{}", why == nullptr ? "it cannot be loaded" : why);
    }
    finalize_ = symbol<int(const void*, size_t)>(library_, "PMIx_Finalize");
    auto* const init = symbol<int(PmixProcess*, void*, size_t)>(library_, "PMIx_Init");
    call("PMIx_Init", deadline, [init, self = self_] { return init(self.get(), nullptr, 0); });
  }
  ~Pmix() {  // without it the launcher takes the end of this process for a failure
    if (hangs_) return;
    try {
      call("PMIx_Finalize", Deadline::after(kFinalizeNs), [finalize = finalize_] { return finalize(nullptr, 0); });
    } catch (const std::exception& e) {
      write_log(BP_LOG_WARN, e.what());
    }
  }
  Pmix(const Pmix&) = delete;
  Pmix& operator=(const Pmix&) = delete;

  void put(const std::string& key, const std::string& text, const Deadline& deadline) {
    auto* const put = symbol<int(uint8_t, const char*, PmixValue*)>(library_, "PMIx_Put");
    call("PMIx_Put", deadline, [put, key, copy = text]() mutable {
      PmixValue value = {};
      value.type = kString;
      value.string = copy.data();
      return put(kGlobalScope, key.c_str(), &value);
    });
    call("PMIx_Commit", deadline, symbol<int()>(library_, "PMIx_Commit"));
  }

  // Waits for all ranks and distributes what they have put.
  void fence(const Deadline& deadline) {
    PmixInfo collect = {};
    std::strcpy(collect.key.data(), "pmix.collect");
    collect.value.type = kBool;
    collect.value.flag = true;
    using Fence = int(const PmixProcess*, size_t, const PmixInfo*, size_t, Callback, void*);
    wait_for("PMIx_Fence", deadline, [this, &collect](void* data) {
      return symbol<Fence>(library_, "PMIx_Fence_nb")(nullptr, 0, &collect, 1, on_done, data);
    });
  }

  std::string get(uint32_t rank, const std::string& key, const Deadline& deadline) {
    PmixProcess process = *self_;
    process.rank = rank;
    using Get = int(const PmixProcess*, const char*, const void*, size_t, GetCallback, void*);
    return wait_for("PMIx_Get", deadline, [this, &process, &key](void* data) {
      return symbol<Get>(library_, "PMIx_Get_nb")(&process, key.c_str(), nullptr, 0, on_text, data);
    });
  }

 private:
  static constexpr int64_t kFinalizeNs = INT64_C(2) * 1000000000;

  // `body` owns what it uses: it may run on after the deadline.
  template <typename Body>
  void call(const char* name, const Deadline& deadline, Body body) {
    const Allowance allowance(deadline);
    const auto reply = std::make_shared<Reply>();
    start_quiet_thread("bp-pmix", [reply, body = std::move(body)]() mutable {
      const int status = body();
      const std::lock_guard lock(reply->mutex);
      reply->status = status;
      reply->done = true;
      reply->arrived.notify_all();
    }).detach();
    hangs_ = true;
    std::unique_lock lock(reply->mutex);
    if (!wait_on(reply->arrived, lock, deadline, [&reply] { return reply->done; })) {
      fail(BP_TIMEOUT, "{} did not return within {}: the PMIx server of the launcher on this host does not reply", name,
           allowance.text());
    }
    hangs_ = false;
    check(name, reply->status);
  }

  template <typename Start>
  static std::string wait_for(const char* name, const Deadline& deadline, const Start& start) {
    const Allowance allowance(deadline);
    const auto reply = std::make_shared<Reply>();
    auto owner = std::make_unique<std::shared_ptr<Reply>>(reply);
    const int status = start(owner.get());
    if (status == kSuccess) owner.release();  // the callback frees it
    check(name, status);
    std::unique_lock lock(reply->mutex);
    if (!wait_on(reply->arrived, lock, deadline, [&reply] { return reply->done; })) {
      fail(BP_TIMEOUT, "{}: not all ranks took part within {}; look at their output", name, allowance.text());
    }
    check(name, reply->status);
    return reply->text;
  }

  void* const library_;  // never closed: its threads may run
  int (*finalize_)(const void*, size_t) = nullptr;
  const std::shared_ptr<PmixProcess> self_ = std::make_shared<PmixProcess>();
  bool hangs_ = false;  // a call has not returned
};

}  // namespace

std::string exchange_by_pmix(int32_t rank, const std::string& text, const Deadline& deadline) {
  static constinit PerProcess<std::atomic<int>> failed_exchanges;
  const std::string key = exchange_key(*failed_exchanges);
  try {
    if (runs_secure()) fail(BP_UNSUPPORTED, "a set-uid program does not load {}, which obeys variables", kLibrary);
    Pmix pmix(deadline);
    if (rank == 0) pmix.put(key, text, deadline);
    pmix.fence(deadline);
    std::string result = pmix.get(0, key, deadline);
    if (result.starts_with(kNoStore)) ++*failed_exchanges;
    return result;
  } catch (const Error& e) {
    if (e.status() == BP_CANCELLED) throw;
    throw Error(e.status(), fmt::format("MASTER_ADDR is not set, and rank 0's address cannot be exchanged through the "
                                        "launcher (PMIx): {}; set MASTER_ADDR and MASTER_PORT for all ranks, as in "
                                        "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT",
                                        e.what()));
  }
}

}  // namespace backplane::core
