// SPDX-License-Identifier: Apache-2.0
//
// A strict parser of the Prometheus text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace backplane::test {

// The value of each line by its name and labels as written: metrics["up{rank=\"0\"}"].
class Exposition {
 public:
  // Fails the test on any violation of the format.
  explicit Exposition(const std::string& text) : text_(text) {
    EXPECT_NO_THROW(nlohmann::json(text).dump()) << "not UTF-8";
    EXPECT_TRUE(!text.empty() && text.back() == '\n');
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("# HELP ", 0) == 0) {
        begin(line);
      } else if (line.rfind("# TYPE ", 0) == 0) {
        set_type(line);
      } else {
        add(line);
      }
    }
    check_buckets();
  }

  // -1 if absent.
  double operator[](const std::string& line) const {
    const auto found = values_.find(line);
    return found == values_.end() ? -1 : found->second;
  }
  // The type of a metric; empty if absent.
  std::string type(const std::string& name) const {
    const auto found = types_.find(name);
    return found == types_.end() ? "" : found->second;
  }
  const std::string& text() const { return text_; }

 private:
  // The buckets of a histogram or the quantiles of a summary, per set of the other labels.
  struct Steps {
    double last_bound = -std::numeric_limits<double>::infinity();
    double last_value = 0;
  };

  static double number(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    EXPECT_TRUE(!text.empty() && *end == '\0') << text;
    return value;
  }

  void begin(const std::string& line) {
    static const std::regex kHelp(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\\]|\\\\|\\n)+)");
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, kHelp)) << line;
    metric_ = match[1];
    EXPECT_TRUE(helped_.insert(metric_).second) << "twice, or not in one piece: " << metric_;
  }

  void set_type(const std::string& line) {
    static const std::regex kType(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped))");
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, kType)) << line;
    EXPECT_EQ(match[1], metric_);
    EXPECT_TRUE(types_.emplace(metric_, match[2]).second) << line;
  }

  void add(const std::string& line) {
    static const std::regex kName("[a-zA-Z_:][a-zA-Z0-9_:]*");
    static const std::regex kTotal(".*_total");
    const size_t open = line.find('{');
    const size_t close = line.rfind("} ");
    ASSERT_TRUE(open != std::string::npos && close != std::string::npos && open < close) << line;
    const std::string name = line.substr(0, open);
    ASSERT_TRUE(std::regex_match(name, kName)) << line;
    const double value = number(line.substr(close + 2));
    EXPECT_TRUE(values_.emplace(line.substr(0, close + 1), value).second) << "twice: " << line;
    ASSERT_EQ(name.rfind(metric_, 0), 0U) << line << " stands among those of " << metric_;
    const std::string suffix = name.substr(metric_.size());
    const std::string type = types_[metric_];
    EXPECT_TRUE(type != "counter" || std::regex_match(name, kTotal)) << line;
    EXPECT_TRUE(suffix.empty() || type == "histogram" || type == "summary") << line;
    read_labels(line.substr(open + 1, close - open - 1), suffix, type, value);
  }

  // All labels but `le` or `quantile` identify the series.
  void read_labels(std::string rest, const std::string& suffix, const std::string& type, double value) {
    static const std::regex kLabel(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="(([^\\"]|\\\\|\\"|\\n)*)"(,|$))re");
    std::string whose;
    std::string step;
    std::set<std::string> names;
    for (std::smatch match; !rest.empty(); rest = match.suffix().str()) {
      ASSERT_TRUE(std::regex_search(rest, match, kLabel, std::regex_constants::match_continuous)) << rest;
      EXPECT_TRUE(names.insert(match[1]).second) << "twice: " << match[1];
      const std::string name = match[1];
      const bool steps = name == (type == "histogram" ? "le" : "quantile");
      if (steps && (type == "histogram" || type == "summary")) {
        step = match[2];
      } else {
        whose += match[0];
        if (whose.back() != ',') whose += ',';
      }
    }
    if (type == "histogram") {
      ASSERT_EQ(suffix == "_bucket", !step.empty());
      ASSERT_TRUE(suffix == "_bucket" || suffix == "_sum" || suffix == "_count") << suffix;
      if (suffix == "_bucket") climb(whose, number(step), value);
      if (suffix == "_count") counts_[metric_ + whose] = value;
      if (suffix == "_sum") sums_.insert(metric_ + whose);
    } else if (type == "summary") {
      ASSERT_TRUE(suffix.empty() || suffix == "_sum" || suffix == "_count") << suffix;
      if (suffix.empty()) climb(whose, number(step), value);
    }
  }

  void climb(const std::string& whose, double bound, double value) {
    Steps& steps = types_[metric_] == "histogram" ? buckets_[metric_ + whose] : quantiles_[metric_ + whose];
    EXPECT_GT(bound, steps.last_bound) << metric_ << whose;
    EXPECT_GE(value, steps.last_value) << metric_ << whose;
    steps = {bound, value};
  }

  void check_buckets() const {
    EXPECT_EQ(counts_.size(), buckets_.size());
    for (const auto& [whose, steps] : buckets_) {
      EXPECT_EQ(steps.last_bound, std::numeric_limits<double>::infinity()) << whose;
      const auto count = counts_.find(whose);
      ASSERT_NE(count, counts_.end()) << whose;
      EXPECT_EQ(steps.last_value, count->second) << whose;
      EXPECT_EQ(sums_.count(whose), 1U) << whose;
    }
  }

  const std::string text_;
  std::string metric_;  // of the lines being read
  std::set<std::string> helped_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> values_;
  std::map<std::string, Steps> buckets_;
  std::map<std::string, Steps> quantiles_;
  std::map<std::string, double> counts_;
  std::set<std::string> sums_;
};

}  // namespace backplane::test
