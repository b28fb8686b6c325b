// SPDX-License-Identifier: Apache-2.0
//
// The pipe from a child to the supervisor. Each record is one write of at most PIPE_BUF bytes, which the kernel makes
// atomic: neither threads of a child nor a killed child leave a partial record.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::conformance {

struct Record {
  enum Kind : uint32_t {
    kFinding = 1,   // fields: expected, actual, step, now()
    kFatal,         // the same, and the rank leaves the case
    kSkip,          // reason
    kCell,          // op, dtype, reduce_op, memory, 1 if the result was right, else 0
    kLog,           // level, text: what the plugin logged
    kDying,         // signal: this rank ends itself by it, as the case requires
    kFreeze,        // milliseconds: stop this rank's process for that long; -1: indefinitely
    kHarnessError,  // text: an error of the harness
    kFacts,         // encoded by facts.cpp
    kDone           // the body has returned
  };
  Kind kind = kFinding;
  int32_t member = -1;
  std::vector<std::string> fields;

  // The field, or "" and 0 if there is none.
  std::string text(size_t i) const { return i < fields.size() ? fields[i] : std::string(); }
  int64_t number(size_t i) const { return std::strtoll(text(i).c_str(), nullptr, 10); }
};

// Writes records to a pipe; any thread. A pipe without a reader is no error: the supervisor has ended the case.
class Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  int descriptor() const { return descriptor_; }
  // Fields that do not fit are cut.
  void send(const Record& record) const;

 private:
  int descriptor_;
};

// Decodes records from bytes.
class RecordReader {
 public:
  void feed(std::string_view bytes) { buffer_ += bytes; }
  // Returns false if there is no complete record. Malformed records are dropped: a plugin may write to any descriptor.
  bool next(Record& record);

 private:
  std::string buffer_;
};

}  // namespace backplane::conformance
