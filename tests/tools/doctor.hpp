// SPDX-License-Identifier: Apache-2.0
//
// Findings of `backplane doctor --json`.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/command.hpp"

namespace backplane::test {

// The words of the command that the tests run. It probes few backends, to be fast.
inline std::vector<std::string> doctor_command(const std::vector<std::string>& options = {"--json"}) {
  std::vector<std::string> words = {"/usr/bin/env", "BACKPLANE_PLUGINS_ALLOW=self,zmq", BACKPLANE_TEST_COMMAND,
                                    "doctor"};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

// Starts a program, the first word, with the others as its arguments.
inline std::unique_ptr<Command> start_words(const std::vector<std::string>& words,
                                            const std::map<std::string, std::string>& environment = {}) {
  const std::vector<std::string> arguments(words.begin() + 1, words.end());
  return std::make_unique<Command>(arguments, Setting{.environment = environment, .program = words.front()});
}

inline Outcome run_words(const std::vector<std::string>& words,
                         const std::map<std::string, std::string>& environment = {}) {
  return start_words(words, environment)->wait();
}

class DoctorReport {
 public:
  explicit DoctorReport(const Outcome& outcome)
      : outcome_(outcome), json_(nlohmann::json::parse(outcome.out, nullptr, false)) {
    EXPECT_TRUE(json_.is_object()) << outcome.out << outcome.err;
  }

  const nlohmann::json& json() const { return json_; }

  // The texts of the findings of a check, of that severity and on these hosts, if named.
  std::vector<std::string> texts(const std::string& check, const std::string& severity = "",
                                 const std::vector<std::string>& hosts = {}) const {
    std::vector<std::string> found;
    for (const auto& each : json_.value("findings", nlohmann::json::array())) {
      const bool is_meant = (severity.empty() || each["severity"] == severity) &&
                            (hosts.empty() || each["hosts"].get<std::vector<std::string>>() == hosts);
      if (each["check"] == check && is_meant) found.push_back(each["text"]);
    }
    return found;
  }

  // Whether one of these findings has the text.
  testing::AssertionResult has(const std::string& severity, const std::string& check, const std::string& text,
                               const std::vector<std::string>& hosts = {}) const {
    for (const std::string& each : texts(check, severity, hosts)) {
      if (contains(each, text)) return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "no " << severity << " of " << check << " with \"" << text << "\" in\n"
                                       << outcome_.out << outcome_.err;
  }

 private:
  const Outcome outcome_;
  const nlohmann::json json_;
};

}  // namespace backplane::test
