// SPDX-License-Identifier: Apache-2.0
//
// Coverage goals of a fuzz target: a target that rejects every input would pass without testing anything.
//
//     Coverage read_hello("a hello was read");
//     ...
//     read_hello.mark();
//
// The replay fails unless the seeds have reached every goal.
#pragma once

#include <vector>

class Coverage {
 public:
  explicit Coverage(const char* what) : what_(what) { all().push_back(this); }
  Coverage(const Coverage&) = delete;
  Coverage& operator=(const Coverage&) = delete;

  void mark() { is_covered_ = true; }
  bool is_covered() const { return is_covered_; }
  const char* what() const { return what_; }

  // All goals of this program.
  static std::vector<const Coverage*>& all() {
    static std::vector<const Coverage*> list;
    return list;
  }

 private:
  const char* const what_;
  bool is_covered_ = false;
};
