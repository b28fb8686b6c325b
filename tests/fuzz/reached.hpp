// SPDX-License-Identifier: Apache-2.0
//
// A target that refuses everything keeps all its promises. So each of them says when it has come to what it is about:
//
//     Reached read_hello("a hello was read");
//     ...
//     read_hello.mark();
//
// The replay fails unless its seeds have reached all of that.
#pragma once

#include <vector>

class Reached {
 public:
  explicit Reached(const char* what) : what_(what) { all().push_back(this); }
  Reached(const Reached&) = delete;
  Reached& operator=(const Reached&) = delete;

  void mark() { is_reached_ = true; }
  bool is_reached() const { return is_reached_; }
  const char* what() const { return what_; }

  // Of this program.
  static std::vector<const Reached*>& all() {
    static std::vector<const Reached*> list;
    return list;
  }

 private:
  const char* const what_;
  bool is_reached_ = false;
};
