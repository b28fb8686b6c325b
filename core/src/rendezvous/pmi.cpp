// SPDX-License-Identifier: Apache-2.0
//
// A client of PMI-1 (base/pmi_wire.hpp).
#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "backplane/base/pmi_wire.hpp"
#include "environment.hpp"
#include "error.hpp"
#include "interrupt.hpp"
#include "process.hpp"
#include "rendezvous/address_exchange.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

using base::pmi_field;

constexpr const char* kUseMaster = "set MASTER_ADDR and MASTER_PORT for all ranks";

// Values must not contain spaces.
std::string to_hex(std::string_view text) {
  std::string hex;
  for (const char c : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::string from_hex(const std::string& hex) {
  std::string text;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned char byte = 0;
    const auto parsed = std::from_chars(&hex[i], &hex[i] + 2, byte, 16);
    if (parsed.ptr != &hex[i] + 2) fail(BP_INTERNAL, "the launcher returned {} as an address", quoted(hex));
    text += static_cast<char>(byte);
  }
  return text;
}

class Pmi {
 public:
  explicit Pmi(int fd) : fd_(fd) {}

  // The deadline of the calls that follow.
  void limit(const Deadline& deadline) {
    deadline_ = deadline;
    allowance_ = Allowance(deadline);
  }
  // Call first. No effect if it has begun.
  void begin() {
    if (!space_.empty()) return;
    call("cmd=init pmi_version=1 pmi_subversion=1");
    space_ = pmi_field(call("cmd=get_my_kvsname"), "kvsname");
  }

  void put(const std::string& key, const std::string& value) {
    call(fmt::format("cmd=put kvsname={} key={} value={}", space_, key, value));
  }
  std::string get(const std::string& key) {
    return pmi_field(call(fmt::format("cmd=get kvsname={} key={}", space_, key)), "value");
  }
  void barrier() { call("cmd=barrier_in"); }
  // Without it the launcher takes the end of this process for a failure.
  void finalize() { call("cmd=finalize"); }
  // The same after a failure.
  void abandon() noexcept {
    constexpr int64_t kReplyNs = 1'000'000'000;
    deadline_ = Deadline::after(kReplyNs);
    try {
      finalize();
    } catch (const std::exception&) {
      // The launcher has gone.
    }
  }

 private:
  std::string call(const std::string& line) {
    send(line + "\n");
    std::string reply = receive();
    const std::string code = pmi_field(reply, "rc");
    if (code.empty() || code == "0") return reply;
    fail(BP_INTERNAL, "the launcher replied {} to the PMI request {}; {}", quoted(reply), quoted(line), kUseMaster);
  }

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) fail_connection(std::system_category().message(errno));
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  std::string receive() {
    std::string line;
    char c = 0;
    while (c != '\n') {
      wait();
      const ssize_t got = ::recv(fd_, &c, 1, 0);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) fail_connection(got == 0 ? "it is closed" : std::system_category().message(errno));
      line += c;
    }
    line.pop_back();
    return line;
  }

  void wait() const {
    constexpr int kSliceMs = 100;  // between calls of the interruption hook
    pollfd polled = {fd_, POLLIN, 0};
    while (::poll(&polled, 1, kSliceMs) <= 0) {
      Interruptible::check();
      if (!deadline_.passed()) continue;
      fail(BP_TIMEOUT,
           "not all ranks of the launcher exchanged their addresses within {}; look at their output for why "
           "they did not start, or use a longer timeout",
           allowance_.text());
    }
  }

  [[noreturn]] static void fail_connection(const std::string& why) {
    fail(
        BP_UNSUPPORTED,
        "the connection to the launcher (PMI_FD) cannot be used: {}; perhaps another program of this rank has used it; "
        "{}",
        why, kUseMaster);
  }

  const int fd_;
  Deadline deadline_ = Deadline::never();
  Allowance allowance_{deadline_};
  std::string space_;
};

// The connection after an exchange without a store, or one after which an MPI library may begin on it. PMI-1 cannot
// begin again once it is finalized.
struct Kept {
  std::mutex mutex;  // held during an exchange
  std::unique_ptr<Pmi> pmi;
  int failed_exchanges = 0;
  bool ends_at_exit = false;
};

Kept& kept() {
  static constinit PerProcess<Kept> instance;
  return *instance;
}

// Such a library has begun on the connection and ends it.
bool has_loaded_mpi() {
  const auto is_mpi = [](dl_phdr_info* object, size_t, void*) -> int {
    const std::string_view path(object->dlpi_name);
    const std::string_view name = path.substr(path.rfind('/') + 1);
    return name.starts_with("libmpi.so") || name.starts_with("libmpi_abi.so") || name.starts_with("libmpich.so");
  };
  return ::dl_iterate_phdr(is_mpi, nullptr) != 0;
}

void finalize_at_exit() {
  const std::unique_lock lock(kept().mutex, std::try_to_lock);
  if (lock && kept().pmi && !has_loaded_mpi()) kept().pmi->abandon();
}

void keep(Kept& state, std::unique_ptr<Pmi> pmi) {
  state.pmi = std::move(pmi);
  if (!std::exchange(state.ends_at_exit, true)) std::atexit(finalize_at_exit);
}

std::string exchange(Kept& state, std::unique_ptr<Pmi> pmi, int32_t rank, const std::string& text,
                     Afterwards afterwards) {
  const std::string key = exchange_key(state.failed_exchanges);
  try {
    pmi->begin();
    if (rank == 0) pmi->put(key, to_hex(text));
    pmi->barrier();
    std::string result = from_hex(pmi->get(key));
    const bool has_failed = result.starts_with(kNoStore);
    if (has_failed) ++state.failed_exchanges;
    if (has_failed || afterwards == Afterwards::kKeep) {
      keep(state, std::move(pmi));
    } else {
      pmi->finalize();
    }
    return result;
  } catch (...) {
    pmi->abandon();
    throw;
  }
}

}  // namespace

std::string exchange_by_pmi(int32_t rank, const std::string& text, Afterwards afterwards, const Deadline& deadline) {
  const auto descriptor = trusted_variable("PMI_FD");
  if (!descriptor) {
    fail(BP_INVALID, "MASTER_ADDR is not set, and the launcher that set PMI_RANK offers no connection (PMI_FD); {}",
         kUseMaster);
  }
  if (::dlsym(RTLD_DEFAULT, "MPI_Init") != nullptr) {
    fail(
        BP_INVALID,
        "MASTER_ADDR is not set, and this program uses MPI, which needs the launcher's connection (PMI_FD) for itself; "
        "broadcast an address of rank 0 over MPI and use the init method tcp://, or {}",
        kUseMaster);
  }
  const std::lock_guard lock(kept().mutex);
  std::unique_ptr<Pmi> pmi = std::move(kept().pmi);
  if (!pmi) pmi = std::make_unique<Pmi>(static_cast<int>(parse_number("PMI_FD", *descriptor, 0, INT32_MAX)));
  pmi->limit(deadline);
  return exchange(kept(), std::move(pmi), rank, text, afterwards);
}

}  // namespace backplane::core
