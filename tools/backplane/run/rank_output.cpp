// SPDX-License-Identifier: Apache-2.0
#include "run/rank_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/files.hpp"

namespace backplane::tool {

RankOutput::Streams RankOutput::add(int rank) {
  base::Pipe out = make_pipe();
  base::Pipe err = make_pipe();
  relays_.emplace_back(std::move(out.read), out_, rank);
  relays_.emplace_back(std::move(err.read), err_, rank);
  return {std::move(out.write), std::move(err.write)};
}

void RankOutput::print(const std::string& sentence) { err_.write(this, "", fmt::format("backplane: {}\n", sentence)); }

void RankOutput::add_interest(std::vector<pollfd>& polled) const {
  polled.push_back({out_.empty() ? -1 : out_.fd(), POLLOUT, 0});
  polled.push_back({err_.empty() ? -1 : err_.fd(), POLLOUT, 0});
  for (const LineRelay& relay : relays_) polled.push_back({relay.ready() ? relay.fd() : -1, POLLIN, 0});
}

void RankOutput::serve(std::span<const pollfd> polled) {
  if (polled[0].revents != 0) out_.flush_some();
  if (polled[1].revents != 0) err_.flush_some();
  for (size_t i = 0; i < relays_.size(); ++i) {
    if (polled[2 + i].revents != 0 || (finishing_ && relays_[i].ready())) relays_[i].read();
  }
}

void RankOutput::finish() {
  finishing_ = true;
  for (LineRelay& relay : relays_) relay.finish();
}

bool RankOutput::has_unread() const {
  return finishing_ && std::any_of(relays_.begin(), relays_.end(), [](const LineRelay& r) { return r.ready(); });
}

bool RankOutput::done() const {
  const bool silent = std::none_of(relays_.begin(), relays_.end(), [](const LineRelay& r) { return r.open(); });
  return silent && out_.empty() && err_.empty();
}

}  // namespace backplane::tool
