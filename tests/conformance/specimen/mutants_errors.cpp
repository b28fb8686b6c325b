// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>

#include "mutants_async.hpp"

namespace backplane::specimen {
namespace {

// Each function corrupts an error report.
using Spoil = int32_t (*)(const bp_op* op, int32_t status, bp_error* err);

template <Spoil spoil>
int32_t submits(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return spoil(op, kPlain.submit(self, op, work, err), err);
}
template <Spoil spoil>
int32_t tests(void* self, bp_work* work, bp_error* err) {
  return spoil(nullptr, kPlain.work_test(self, work, err), err);
}
template <Spoil spoil>
int32_t waits(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  return spoil(nullptr, kPlain.work_wait(self, work, timeout_ns, err), err);
}
template <Spoil spoil>
void spoilt(bp_agent& agent) {
  replaced<&Table::submit, submits<spoil>, &Table::work_test, tests<spoil>, &Table::work_wait, waits<spoil>>(agent);
}

// The same for failures with a report.
template <void (*change)(const bp_op* op, bp_error& err)>
int32_t on_failure(const bp_op* op, int32_t status, bp_error* err) {
  if (has_failed(status) && err != nullptr) change(op, *err);
  return status;
}

void adds_a_line(const bp_op*, bp_error& err) {
  if (std::strlen(err.text) + 12 < BP_ERROR_TEXT_SIZE) std::strcat(err.text, "\nat line 12");
}
void forgets_status(const bp_op*, bp_error& err) { err.status = BP_OK; }
void says_nothing(const bp_op*, bp_error& err) { err.text[0] = '\0'; }
void writes_latin1(const bp_op*, bp_error& err) { std::strcpy(err.text, "verk\xFCrzt"); }
void counts(const bp_op*, bp_error& err) {
  static std::atomic<uint64_t> count = 0;
  const std::string number = " (error " + std::to_string(++count) + ")";
  if (std::strlen(err.text) + number.size() < BP_ERROR_TEXT_SIZE) std::strcat(err.text, number.c_str());
}
void forgets_native_code(const bp_op*, bp_error& err) { err.native_code = 0; }
void forgets_peer(const bp_op*, bp_error& err) { err.peer_rank = -1; }
void cuts_anywhere(const bp_op*, bp_error& err) {
  const size_t size = std::strlen(err.text);
  if (size > 1000) err.text[size - 1] = '\0';
}
void blames_the_peer(const bp_op* op, bp_error& err) {
  if (op != nullptr) err.peer_rank = op->peer;
}
void names_nothing(const bp_op*, bp_error& err) {
  if (err.status == BP_TIMEOUT) std::strcpy(err.text, "timed out");
}
void clears_all(const bp_op*, bp_error& err) {
  const bp_error known = err;
  std::memset(static_cast<void*>(&err), 0, known.struct_size);
  std::memcpy(static_cast<void*>(&err), &known, sizeof known);
}

int32_t wants_a_report(const bp_op*, int32_t status, bp_error* err) {
  if (has_failed(status)) const_cast<volatile bp_error*>(err)->reserved = 0;
  return status;
}
int32_t reports_success(const bp_op*, int32_t status, bp_error* err) {
  if (err != nullptr && !has_failed(status)) err->status = status;
  return status;
}

class BlamesItself final : public Specimen {
  void truncated(const OperationPtr& receive, int32_t source, uint64_t size) override {
    if (receive->result != nullptr) {
      receive->result->source = source;
      receive->result->bytes = size;
    }
    fail(*receive, sdk::Failure(BP_INTERNAL, "a message is too long", source));
  }
};

class NamesWrongRank final : public Specimen {
  void drop_peer(int32_t rank, const sdk::Failure& why) override {
    Specimen::drop_peer(rank, sdk::Failure(BP_PEER_LOST, why.what(), rank == 0 ? world_size_ - 1 : 0));
  }
};

}  // namespace

std::vector<Mutant> errors_mutants() {
  return {
      {"errors.reports", "texts have two lines", nullptr, nullptr, spoilt<on_failure<adds_a_line>>},
      {"errors.reports:2", "bp_error.status is left at BP_OK", nullptr, nullptr, spoilt<on_failure<forgets_status>>},
      {"errors.reports:3", "texts are empty", nullptr, nullptr, spoilt<on_failure<says_nothing>>},
      {"errors.reports:4", "texts are in Latin-1", nullptr, nullptr, spoilt<on_failure<writes_latin1>>},
      {"errors.statuses", "a message that is too long is BP_INTERNAL", made<BlamesItself>},
      {"errors.stable", "each report has another number", nullptr, nullptr, spoilt<on_failure<counts>>},
      {"errors.null-report", "err must not be NULL", nullptr, nullptr, spoilt<wants_a_report>},
      {"errors.cause", "native codes are lost", nullptr, nullptr, spoilt<on_failure<forgets_native_code>>},
      {"errors.cause:2", "peer ranks are lost", nullptr, nullptr, spoilt<on_failure<forgets_peer>>},
      {"errors.long-text", "long texts are cut in the middle of a character", nullptr, nullptr,
       spoilt<on_failure<cuts_anywhere>>},
      {"errors.same-culprit", "submit names the peer of the operation", nullptr, nullptr,
       spoilt<on_failure<blames_the_peer>>},
      {"errors.names-the-lost", "a rank that left is given another's number", made<NamesWrongRank>},
      {"errors.names-the-operation", "a timeout text has no details", nullptr, nullptr,
       spoilt<on_failure<names_nothing>>},
      {"errors.untouched", "reports are written on success", nullptr, nullptr, spoilt<reports_success>},
      {"errors.longer-report", "a report is cleared as far as struct_size says", nullptr, nullptr,
       spoilt<on_failure<clears_all>>},
  };
}

}  // namespace backplane::specimen
