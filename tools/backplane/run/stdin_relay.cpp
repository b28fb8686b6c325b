// SPDX-License-Identifier: Apache-2.0
#include "run/stdin_relay.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>

#include "backplane/base/subprocess.hpp"
#include "common/files.hpp"

namespace backplane::tool {

StdinRelay::StdinRelay() {
  if (::isatty(0) != 1) return;
  pipe_ = make_pipe();
  base::set_nonblocking(pipe_.write.get());
}

pollfd StdinRelay::interest() const {
  if (!pipe_.write) return {-1, 0, 0};
  if (!pending_.empty()) return {pipe_.write.get(), POLLOUT, 0};
  // A launcher in the background must not read from the terminal.
  return {::tcgetpgrp(0) == ::getpgrp() ? 0 : -1, POLLIN, 0};
}

void StdinRelay::serve() {
  if (pending_.empty()) {
    std::array<char, 4096> buffer;
    const ssize_t size = ::read(0, buffer.data(), buffer.size());
    if (size > 0) {
      pending_.assign(buffer.data(), static_cast<size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      pipe_.write.reset();
    }
    return;
  }
  const ssize_t size = ::write(pipe_.write.get(), pending_.data(), pending_.size());
  if (size > 0) {
    pending_.erase(0, static_cast<size_t>(size));
  } else if (errno != EINTR && errno != EAGAIN) {
    pipe_.write.reset();  // rank 0 reads no more
  }
}

}  // namespace backplane::tool
