// SPDX-License-Identifier: Apache-2.0
#include "run/line_relay.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "backplane/base/subprocess.hpp"

namespace backplane::tool {
namespace {

constexpr size_t kLongestLine = size_t{64} * 1024;  // longer lines are forwarded in parts
constexpr int kRankColours[] = {36, 32, 33, 35, 34, 31};

std::string make_prefix(int rank, bool coloured) {
  if (!coloured) return fmt::format("[{}] ", rank);
  return fmt::format("\x1b[{}m[{}]\x1b[0m ", kRankColours[static_cast<size_t>(rank) % std::size(kRankColours)], rank);
}

}  // namespace

LineRelay::LineRelay(base::Descriptor from, Output& to, int rank)
    : from_(std::move(from)), to_(&to), prefix_(make_prefix(rank, to.coloured())) {
  base::set_nonblocking(from_.get());
}

void LineRelay::read() {
  std::array<char, 32768> buffer;
  const ssize_t size = ::read(from_.get(), buffer.data(), buffer.size());
  if (size > 0) {
    accept({buffer.data(), static_cast<size_t>(size)});
    // The rank gets SIGPIPE, as without the launcher.
    if (to_->broken()) from_.reset();
    return;
  }
  if (size < 0 && (errno == EINTR || (errno == EAGAIN && !ending_))) return;
  close();
}

void LineRelay::accept(std::string_view bytes) {
  for (size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    line_ += bytes.substr(0, end + 1);
    to_->write(this, prefix_, line_);
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
  line_ += bytes;
  if (line_.size() < kLongestLine) return;
  to_->write(this, prefix_, line_);
  line_.clear();
}

void LineRelay::close() {
  to_->write(this, prefix_, line_);
  to_->end_line(this);  // even if the whole line was forwarded in parts
  line_.clear();
  from_.reset();
}

}  // namespace backplane::tool
