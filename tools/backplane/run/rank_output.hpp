// SPDX-License-Identifier: Apache-2.0
//
// Standard output and error of the launcher: the lines of the ranks, each with its rank as prefix, and its own.
#pragma once

#include <poll.h>

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "run/line_relay.hpp"
#include "run/output.hpp"

namespace backplane::tool {

class RankOutput {
 public:
  // The ends of pipes to which a rank writes. The caller closes them once the rank has them.
  struct Streams {
    base::Descriptor out;
    base::Descriptor err;
  };
  // Throws Failure.
  Streams add(int rank);

  // A line of the launcher.
  void print(const std::string& sentence);

  // Appends the descriptors to poll. serve handles their events, in the same order.
  void add_interest(std::vector<pollfd>& polled) const;
  void serve(std::span<const pollfd> polled);
  // All ranks have ended: what they have written is read without polling.
  void finish();
  // Whether serve has something to do without an event.
  bool has_unread() const;
  // Whether all streams have ended and everything is written.
  bool done() const;

 private:
  Output out_{1};
  Output err_{2};
  std::deque<LineRelay> relays_;
  bool finishing_ = false;
};

}  // namespace backplane::tool
