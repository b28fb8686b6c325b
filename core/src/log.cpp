// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <string_view>

#include "process.hpp"

namespace backplane::core {
namespace {

constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error"};
constexpr uint32_t kOff = 4;

struct Sink {
  PerProcess<std::mutex> mutex;
  LogFunction log = nullptr;
  void* ctx = nullptr;
};

Sink& sink() {
  static Sink* const instance = new Sink;  // plugins' threads may log while the process ends
  return *instance;
}

uint32_t threshold() {
  const char* text = std::getenv("BACKPLANE_LOG");
  if (text == nullptr) return BP_LOG_WARN;
  if (std::string_view(text) == "off") return kOff;
  for (uint32_t level = 0; level < kOff; ++level) {
    if (kLevels[level] == text) return level;
  }
  static std::atomic<bool> is_told = false;
  if (*text != '\0' && !is_told.exchange(true)) {
    std::fprintf(stderr, "[backplane warn] BACKPLANE_LOG is '%s'; it must be debug, info, warn, error or off\n", text);
  }
  return BP_LOG_WARN;
}

}  // namespace

void set_log(LogFunction log, void* ctx) {
  const std::lock_guard lock(*sink().mutex);
  sink().log = log;
  sink().ctx = ctx;
}

void write_log(uint32_t level, const std::string& text) noexcept {
  LogFunction log = nullptr;
  void* ctx = nullptr;
  try {
    const std::lock_guard lock(*sink().mutex);
    log = sink().log;
    ctx = sink().ctx;
  } catch (const std::bad_alloc&) {
    // For the first lock of a process: to stderr.
  }
  if (log != nullptr) return log(ctx, level, text.c_str());
  if (level < threshold() || level >= kOff) return;
  std::fprintf(stderr, "[backplane %s] %s\n", kLevels[level].data(), text.c_str());
}

void warn_once(const std::string& text) {
  struct Warnings {
    std::mutex mutex;
    std::set<std::string> texts;
  };
  static constinit PerProcess<Warnings> warned;
  {
    const std::lock_guard lock(warned->mutex);
    if (!warned->texts.insert(text).second) return;
  }
  write_log(BP_LOG_WARN, text);
}

}  // namespace backplane::core
