// SPDX-License-Identifier: Apache-2.0
#include "output_capture.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace backplane::conformance {
namespace {

void flush_output() {
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

}  // namespace

OutputCapture::OutputCapture() : file_(memfd_create("backplane-output", MFD_CLOEXEC)) {
  flush_output();
  for (int i = 0; i < 2; ++i) {
    saved_[i].reset(fcntl(i + 1, F_DUPFD_CLOEXEC, 3));
    dup2(file_.get(), i + 1);
  }
}

OutputCapture::~OutputCapture() {
  flush_output();
  for (int i = 0; i < 2; ++i) dup2(saved_[i].get(), i + 1);
}

std::string OutputCapture::text() const {
  flush_output();
  std::string text(65536, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(file_.get(), text.data(), text.size(), 0))));
  return text;
}

}  // namespace backplane::conformance
