// SPDX-License-Identifier: Apache-2.0
//
// Copies one output stream of a rank to an Output, in whole lines with the rank as prefix. Bytes are not changed.
#pragma once

#include <string>

#include "backplane/base/descriptor.hpp"
#include "run/output.hpp"

namespace backplane::tool {

class LineRelay {
 public:
  LineRelay(base::Descriptor from, Output& to, int rank);

  int fd() const { return from_.get(); }
  bool open() const { return static_cast<bool>(from_); }
  // True if the output has room for another read().
  bool ready() const { return open() && !to_->full(); }

  // Reads once. Call it after poll() reported POLLIN.
  void read();
  // The rank has exited: the stream ends when the pipe is empty, even if another process still holds its other end.
  void finish() { ending_ = true; }

 private:
  void accept(std::string_view bytes);
  void close();

  base::Descriptor from_;
  Output* to_;
  std::string prefix_;
  std::string line_;  // a line without its newline
  bool ending_ = false;
};

}  // namespace backplane::tool
