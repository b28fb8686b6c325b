// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of the caller's bp_error a backend writes, and when.
#include <algorithm>
#include <cstring>

#include "errors_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// A report with a value in every byte that a callee could write, as if an earlier call had failed.
bp_error used_report() {
  bp_error error;
  std::memset(&error, 0x5A, sizeof error);
  error.struct_size = sizeof error;
  error.text[BP_ERROR_TEXT_SIZE - 1] = '\0';
  return error;
}

void expect_untouched(Rank& rank, const bp_error& error, const std::string& what) {
  const bp_error before = used_report();
  const auto* now_bytes = reinterpret_cast<const unsigned char*>(&error);
  const auto* then_bytes = reinterpret_cast<const unsigned char*>(&before);
  const auto* wrong = std::mismatch(now_bytes, now_bytes + sizeof error, then_bytes).first;
  rank.check(wrong == now_bytes + sizeof error, what + " leaves the report untouched",
             fmt::format("byte {} of it has changed", wrong - now_bytes));
}

void untouched(Rank& rank) {
  const auto agent = rank.open();
  const bp_process_group_api& api = agent->api();
  std::vector<uint8_t> got(100);
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()), 100);
  bp_op recv = recv_op(rank.previous(), 1, got.data(), got.size());
  bp_op send = send_op(rank.next(), 1, sent.data(), sent.size());
  const auto recv_twin = mirror(rank, agent->mirrors(), &recv);
  const auto send_twin = mirror(rank, agent->mirrors(), &send);
  bp_work* receiving = nullptr;
  bp_work* sending = nullptr;
  bp_error error = used_report();
  rank.step("calling with a report that holds something already");
  rank.require(api.submit(agent->self(), &recv, &receiving, &error) == BP_OK, "submit of a recv succeeds", "it failed");
  expect_untouched(rank, error, "submit that says BP_OK");
  if (receiving == nullptr) rank.fail("a recv whose message was not sent is in flight", "submit says that it is done");
  error = used_report();
  int32_t status = api.work_test(agent->self(), receiving, &error);
  if (status == BP_AGAIN) expect_untouched(rank, error, "work_test that says BP_AGAIN");
  error = used_report();
  status = api.work_wait(agent->self(), receiving, kMillisecond, &error);
  if (status == BP_AGAIN) expect_untouched(rank, error, "work_wait that says BP_AGAIN");
  rank.barrier();
  error = used_report();
  rank.require(api.submit(agent->self(), &send, &sending, &error) == BP_OK, "submit of a send succeeds", "it failed");
  expect_untouched(rank, error, "submit that says BP_OK");
  error = used_report();
  status = api.work_wait(agent->self(), receiving, rank.hang_limit(kEndLimit), &error);
  rank.require(status == BP_OK, "work_wait for the recv succeeds", status_name(status));
  expect_untouched(rank, error, "work_wait that says BP_OK");
  error = used_report();
  status = api.work_test(agent->self(), receiving, &error);
  rank.require(status == BP_OK, "work_test of the recv that is done says so", status_name(status));
  expect_untouched(rank, error, "work_test that says BP_OK");
  api.work_release(agent->self(), receiving);
  if (sending == nullptr) return;
  status = api.work_wait(agent->self(), sending, rank.hang_limit(kEndLimit), &error);
  rank.require(status == BP_OK, "work_wait for the send succeeds", status_name(status));
  api.work_release(agent->self(), sending);
}

// A report of a later minor version: longer than the struct that the backend knows.
struct LongReport {
  static constexpr size_t kTail = 512;
  bp_error error;
  unsigned char tail[kTail];

  LongReport() {
    bp_error_init(&error);
    error.struct_size = sizeof *this;
    std::memset(tail, 0xAB, sizeof tail);
  }
};

void check_long(Rank& rank, const LongReport& report, int32_t status, const std::string& what) {
  rank.check(report.error.struct_size == sizeof report, what + " leaves struct_size as the caller set it",
             fmt::format("it is {}", report.error.struct_size));
  rank.check(report.error.status == status && report.error.text[0] != '\0',
             what + " fills in a report that is longer than it knows",
             fmt::format("status {}, text '{}'", report.error.status, report.error.text));
  const auto* wrong =
      std::find_if(report.tail, report.tail + LongReport::kTail, [](unsigned char c) { return c != 0xAB; });
  rank.check(
      wrong == report.tail + LongReport::kTail, what + " writes nothing behind the fields that it knows",
      fmt::format("byte {} of the report has changed", sizeof(bp_error) + static_cast<size_t>(wrong - report.tail)));
}

void longer(Rank& rank) {
  const auto agent = rank.open();
  const bp_process_group_api& api = agent->api();
  std::vector<uint8_t> small(8);
  const std::vector<uint8_t> large(100, 1);
  rank.step("failing with a report that is longer than known");
  bp_op recv = recv_op(rank.previous(), 1, small.data(), small.size());
  const auto recv_twin = mirror(rank, agent->mirrors(), &recv);
  bp_work* receiving = nullptr;
  LongReport ok;
  rank.require(api.submit(agent->self(), &recv, &receiving, &ok.error) == BP_OK, "submit of a recv succeeds",
               ok.error.text);
  rank.barrier();
  Pending send = agent->isend(rank.next(), 1, large.data(), large.size());
  if (receiving != nullptr) {
    LongReport report;
    const int32_t status = api.work_wait(agent->self(), receiving, rank.hang_limit(kEndLimit), &report.error);
    rank.require(status == BP_INVALID, "work_wait for a recv whose message is too long ends with BP_INVALID",
                 status_name(status));
    check_long(rank, report, status, "work_wait");
    LongReport again;
    check_long(rank, again, api.work_test(agent->self(), receiving, &again.error), "work_test");
    api.work_release(agent->self(), receiving);
  }
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send");
  rank.barrier();
  LongReport why;
  bp_error_set(&why.error, BP_RESOURCE, 0, -1, "a cause in a longer report");
  rank.world().mark_failed();
  api.abort(agent->self(), &why.error);
  bp_work* refused = nullptr;
  LongReport report;
  const int32_t status = api.submit(agent->self(), &recv, &refused, &report.error);
  rank.check(status == BP_RESOURCE, "submit after abort fails with the cause's status, BP_RESOURCE",
             status_name(status));
  check_long(rank, report, status, "submit");
  rank.barrier();
}

}  // namespace

std::vector<Case> error_memory_cases() {
  return {
      Case("untouched", "BP_OK and BP_AGAIN leave the caller's report untouched", untouched),
      Case("longer-report", "a longer bp_error is filled in up to the known fields", longer),
  };
}

}  // namespace backplane::conformance
