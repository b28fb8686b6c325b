// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "stub.hpp"

namespace stub {
namespace {

// The head of a message's file.
struct Head {
  uint64_t context;
  int32_t source;
  int32_t tag;
  uint64_t bytes;
};

[[noreturn]] void fail(const std::string& what, const std::string& file) {
  std::fprintf(stderr, "stub of MPI: cannot %s %s: %s\n", what.c_str(), file.c_str(), std::strerror(errno));
  std::abort();
}

// Reads or writes all of it: files of a local directory are never short but at the limit of one call (2 GiB).
template <typename Function, typename Data>
void transfer(Function function, int file, Data* data, size_t bytes, const std::string& name) {
  while (bytes > 0) {
    const ssize_t moved = function(file, data, bytes);
    if (moved <= 0) fail("access", name);
    data += moved;
    bytes -= static_cast<size_t>(moved);
  }
}

}  // namespace

void Mailbox::open(int rank, int size) {
  const char* const directory = std::getenv("BACKPLANE_STUB_DIRECTORY");
  directory_ = directory == nullptr ? "" : directory;
  rank_ = rank;
  sent_.assign(static_cast<size_t>(size), 0);
  received_.assign(static_cast<size_t>(size), 0);
}

std::string Mailbox::name(int from, int to, uint64_t number) const {
  return directory_ + "/" + std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number);
}

void Mailbox::send(int to, const Packet& packet, const void* data, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  if (to == rank_) {
    arrived.push_back(packet);
    arrived.back().data.assign(begin, begin + bytes);
    return;
  }
  const std::string file = name(rank_, to, sent_[static_cast<size_t>(to)]++);
  const std::string unfinished = file + ".part";
  const int fd = ::open(unfinished.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) fail("make", unfinished);
  const Head head = {packet.context, packet.source, packet.tag, bytes};
  transfer(::write, fd, reinterpret_cast<const std::byte*>(&head), sizeof head, unfinished);
  transfer(::write, fd, begin, bytes, unfinished);
  ::close(fd);
  if (::rename(unfinished.c_str(), file.c_str()) != 0) fail("name", file);
}

void Mailbox::receive() {
  const int size = static_cast<int>(received_.size());
  for (int from = 0; from < size; ++from) {
    if (from == rank_) continue;
    for (;;) {
      uint64_t& number = received_[static_cast<size_t>(from)];
      const std::string file = name(from, rank_, number);
      const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) break;
      Head head{};
      transfer(::read, fd, reinterpret_cast<std::byte*>(&head), sizeof head, file);
      arrived.push_back({head.context, head.source, head.tag, Bytes(head.bytes)});
      transfer(::read, fd, arrived.back().data.data(), head.bytes, file);
      ::close(fd);
      ::unlink(file.c_str());
      ++number;
    }
  }
}

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash & ~uint64_t{1};  // the next number is that of collectives
}

}  // namespace stub
