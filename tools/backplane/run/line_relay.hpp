// SPDX-License-Identifier: Apache-2.0
//
// One stream of one rank on its way to a sink: whole lines, each with the rank in front. Bytes are passed as they are.
#pragma once

#include <string>

#include "common/process.hpp"
#include "run/output.hpp"

namespace backplane::tool {

class LineRelay {
 public:
  LineRelay(Descriptor from, Output& to, int rank);

  int fd() const { return from_.get(); }
  bool open() const { return static_cast<bool>(from_); }
  // True if there is room for what read() would bring.
  bool ready() const { return open() && !to_->full(); }

  // Reads once. To be called when poll() has said so.
  void read();
  // The rank has ended: what still lies in the pipe is read, then the stream is over, even if a stranger that inherited
  // its other end lives on.
  void finish() { ending_ = true; }

 private:
  void accept(std::string_view bytes);
  void close();

  Descriptor from_;
  Output* to_;
  std::string prefix_;
  std::string line_;  // the beginning of a line whose end has not come yet
  bool ending_ = false;
};

}  // namespace backplane::tool
