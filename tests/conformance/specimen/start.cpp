// SPDX-License-Identifier: Apache-2.0
//
// Connects the ranks of a group: each publishes its endpoint in the store; the higher rank connects to the lower.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr std::chrono::milliseconds kLook(20);  // how often abort_requested is asked
constexpr std::chrono::milliseconds kLongestPause(100);

[[noreturn]] void fail_system(const std::string& what) {
  const int number = errno;
  const char* text = ::strerrordesc_np(number);
  throw sdk::Failure(BP_RESOURCE, what + ": " + (text == nullptr ? "unknown error" : text), -1, number);
}

std::string to_hex(const Key& key) {
  std::string text;
  for (const uint8_t byte : key) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

Key from_hex(const std::string& text) {
  Key key = {};
  for (size_t i = 0; i < key.size() && 2 * i + 1 < text.size(); ++i) {
    key[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return key;
}

sockaddr_in socket_address(const std::string& address, uint16_t port) {
  sockaddr_in result = {};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &result.sin_addr) != 1 || (ntohl(result.sin_addr.s_addr) >> 24) != 127) {
    throw sdk::Failure(BP_INVALID,
                       "the option address is not an IPv4 address of the loopback device such as 127.0.0.1");
  }
  return result;
}

int64_t nanoseconds_until(TimePoint deadline) {
  if (deadline == TimePoint::max()) return BP_NO_TIMEOUT;
  return std::max<int64_t>(0, std::chrono::nanoseconds(deadline - Clock::now()).count());
}

std::string place_of(int32_t rank) { return "specimen/" + std::to_string(rank); }

}  // namespace

TimePoint deadline_after(int64_t timeout_ns) {
  constexpr int64_t kYear = INT64_C(365) * 86400 * 1000000000;
  if (timeout_ns < 0 || timeout_ns > kYear) return TimePoint::max();
  return Clock::now() + std::chrono::nanoseconds(timeout_ns);
}

void Specimen::start(const sdk::Context& context) {
  host_.emplace(context.host);
  settings_.emplace(context.options);
  rank_ = context.rank;
  world_size_ = context.world_size;
  peers_.resize(static_cast<size_t>(world_size_));
  const TimePoint deadline = deadline_after(context.timeout_ns);
  listen();
  start_threads();
  publish();
  for (int32_t rank = 0; rank < rank_; ++rank) dial(rank, deadline);
  await_others(deadline);
}

void Specimen::listen() {
  if (::getrandom(key_.data(), key_.size(), 0) != static_cast<ssize_t>(key_.size())) fail_system("no random numbers");
  for (size_t i = 0; i < key_.size(); ++i) key_[i] ^= settings_->secret[i];
  const sockaddr_in address = socket_address(settings_->address, settings_->port);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) fail_system("cannot make an eventfd");
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) fail_system("cannot make a socket");
  const int on = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, settings_->backlog) != 0) {
    fail_system("cannot listen on " + settings_->address + " port " + std::to_string(settings_->port) +
                "; choose another one with the option port");
  }
}

void Specimen::start_threads() {
  const sdk::SignalsBlocked blocked;
  try {
    progress_thread_ = std::thread([this] { progress(); });
    collective_thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& e) {
    throw sdk::Failure(BP_RESOURCE, std::string("cannot start a thread: ") + e.what(), -1, e.code().value());
  }
}

void Specimen::publish() {
  sockaddr_in bound = {};
  socklen_t size = sizeof bound;
  if (::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) fail_system("cannot read the port");
  std::ostringstream entry;
  Key shown = key_;  // without the job's secret
  for (size_t i = 0; i < shown.size(); ++i) shown[i] ^= settings_->secret[i];
  entry << settings_->address << ' ' << ntohs(bound.sin_port) << ' ' << world_size_ << ' ' << to_hex(shown);
  host_->store_set(place_of(rank_), entry.str());
}

void Specimen::check_abort() const {
  if (host_->abort_requested()) throw sdk::Failure(BP_CANCELLED, "the start of this group was given up");
}

// A store entry may be stale: retries until the deadline.
void Specimen::dial(int32_t rank, TimePoint deadline) {
  std::chrono::duration<double, std::milli> pause(1);
  for (;;) {
    check_abort();
    std::string entry;
    try {
      entry = host_->store_get(place_of(rank), nanoseconds_until(deadline));
    } catch (const sdk::Failure& e) {
      if (e.status() != BP_TIMEOUT) throw;
      throw sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(rank) + " did not come in time", rank);
    }
    std::istringstream words(entry);
    std::string address;
    std::string hex;
    uint16_t port = 0;
    int32_t world_size = 0;
    words >> address >> port >> world_size >> hex;
    if (world_size != world_size_) {
      throw sdk::Failure(BP_INVALID,
                         "rank " + std::to_string(rank) + " is in a world of " + std::to_string(world_size) +
                             " ranks, rank " + std::to_string(rank_) + " in one of " + std::to_string(world_size_) +
                             "; start all with the same world size",
                         rank);
    }
    Key key = from_hex(hex);
    for (size_t i = 0; i < key.size(); ++i) key[i] ^= settings_->secret[i];
    const int fd = try_connect(address, port, deadline);
    if (fd >= 0) {
      if (try_handshake(fd, rank, key, deadline)) return;
      ::close(fd);
    }
    if (Clock::now() >= deadline) {
      throw sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(rank) + " did not answer in time", rank);
    }
    Lock lock(mutex_);
    changed_.wait_for(lock, pause, [] { return false; });
    pause = std::min<std::chrono::duration<double, std::milli>>(pause * settings_->retry_growth, kLongestPause);
  }
}

bool Specimen::await_socket(int fd, short events, TimePoint deadline) {
  while (Clock::now() < deadline) {
    check_abort();
    pollfd polled = {fd, events, 0};
    if (::poll(&polled, 1, static_cast<int>(kLook.count())) > 0) return true;
  }
  return false;
}

int Specimen::try_connect(const std::string& address, uint16_t port, TimePoint deadline) {
  const sockaddr_in target = socket_address(address, port);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail_system("cannot make a socket");
  int error = 0;
  socklen_t size = sizeof error;
  try {
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0 ||
        (errno == EINPROGRESS && await_socket(fd, POLLOUT, deadline) &&
         ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)) {
      return fd;
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  return -1;
}

bool Specimen::try_handshake(int fd, int32_t rank, const Key& key, TimePoint deadline) {
  const Hello hello{kMagic, rank_, rank, world_size_, key};
  Welcome answer{0, 0};
  if (::send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof hello) return false;
  // The answer is 8 bytes long and sent by one call.
  try {
    if (!await_socket(fd, POLLIN, std::min(deadline, Clock::now() + settings_->handshake))) return false;
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::recv(fd, &answer, sizeof answer, MSG_DONTWAIT) != sizeof answer || answer.magic != kMagic) return false;
  if (answer.refusal == kWelcome) {
    const Lock lock(mutex_);
    adopt(rank, fd);
    return true;
  }
  ::close(fd);
  if (answer.refusal == kLeft) {
    throw sdk::Failure(BP_PEER_LOST, "rank " + std::to_string(rank) + " has left this group already", rank);
  }
  const char* why =
      answer.refusal == kOtherSize ? " has another world size" : " knows this rank already, from elsewhere";
  throw sdk::Failure(BP_INVALID, "rank " + std::to_string(rank) + why + "; start each rank once, with the same size",
                     rank);
}

void Specimen::await_others(TimePoint deadline) {
  Lock lock(mutex_);
  for (;;) {
    int32_t missing = -1;
    for (int32_t rank = 0; rank < world_size_; ++rank) {
      const Peer& each = peer(rank);
      if (each.gone && !each.left) throw sdk::Failure(*each.gone);
      if (rank != rank_ && !each.known && missing < 0) missing = rank;
    }
    if (missing < 0) return;
    if (Clock::now() >= deadline) {
      throw sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(missing) + " did not come in time", missing);
    }
    lock.unlock();
    check_abort();
    lock.lock();
    changed_.wait_until(lock, std::min(deadline, Clock::now() + kLook));
  }
}

}  // namespace backplane::specimen
