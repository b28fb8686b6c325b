// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of stores.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include <forward_list>
#include <functional>
#include <optional>
#include <regex>
#include <string>
#include <utility>

#include "error.hpp"
#include "store/store.hpp"
#include "support/environment.hpp"
#include "support/free_port.hpp"

namespace backplane::core {

inline Deadline in_ms(int64_t ms) { return Deadline::after(ms * 1'000'000); }
// The deadline of calls that must succeed, also on a busy machine under a sanitizer.
inline Deadline soon() { return in_ms(60'000); }

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Runs `body`, which must throw an Error, and returns it.
inline Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error was thrown";
  return {BP_OK, ""};
}

#define EXPECT_ERROR(status_, part, body)                                                                \
  do {                                                                                                   \
    const ::backplane::core::Error error_ = ::backplane::core::error_of([&] { body; });                  \
    EXPECT_EQ(error_.status(), status_) << error_.what();                                                \
    EXPECT_NE(std::string(error_.what()).find(part), std::string::npos) << "it says: " << error_.what(); \
  } while (false)
// The same with a regular expression, for the remaining time in a text, which may be less than the call's timeout.
#define EXPECT_ERROR_LIKE(status_, pattern, body)                                                       \
  do {                                                                                                  \
    const ::backplane::core::Error error_ = ::backplane::core::error_of([&] { body; });                 \
    EXPECT_EQ(error_.status(), status_) << error_.what();                                               \
    EXPECT_TRUE(std::regex_search(error_.what(), std::regex(pattern))) << "it says: " << error_.what(); \
  } while (false)

// Sets or (nullopt) unsets variables and restores all at the end. Tests of one binary run one after the other.
class Environment {
 public:
  Environment() = default;
  ~Environment() {
    while (!variables_.empty()) variables_.pop_front();  // the last one first
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  void set(const std::string& name, const std::optional<std::string>& value) { variables_.emplace_front(name, value); }

 private:
  std::forward_list<test::ScopedVariable> variables_;
};

using test::free_port;
using test::ScopedDirectory;

}  // namespace backplane::core
