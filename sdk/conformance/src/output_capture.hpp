// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backplane/base/descriptor.hpp"

namespace backplane::conformance {

// Redirects stdout and stderr of this process to a memory file during its lifetime. One at a time.
class OutputCapture {
 public:
  OutputCapture();
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  // False if no memory file could be made.
  explicit operator bool() const { return static_cast<bool>(file_); }
  // The output so far; at most 64 KiB.
  std::string text() const;

 private:
  const base::Descriptor file_;
  base::Descriptor saved_[2];
};

}  // namespace backplane::conformance
