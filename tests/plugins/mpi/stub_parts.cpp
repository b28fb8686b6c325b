// SPDX-License-Identifier: Apache-2.0
//
// All_reduces of two ranks that go in parts, and do not succeed.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "stub_ranks.hpp"

namespace backplane::stub_ranks {

// BACKPLANE_TEST_COUNT is the number of this rank's elements.
void parts_differ(const std::string& file) {
  ProcessGroup group = ProcessGroup::create(world_options(file));
  std::vector<int32_t> data(static_cast<size_t>(std::atol(std::getenv("BACKPLANE_TEST_COUNT"))));
  try {
    group.all_reduce(data);
  } catch (const Error& error) {
    expect(error.status() != Status::kTimeout, std::string("an end without a timeout, not: ") + error.what());
    std::printf("%s\n", error.what());
    return;
  }
  expect(false, "a failure");
}

// Rank 1 does not take part. MPI keeps what rank 0 sends, and its memory.
void parts_abandoned(const std::string& file) {
  constexpr int kParts = 3;
  constexpr size_t kCount = 5'000;
  ProcessGroup group = ProcessGroup::create(world_options(file));
  Store store = Store::file(file + ".end");
  if (group.rank() == 1) {
    store.get("end", kTimeout);
    return;
  }
  {
    std::vector<int32_t> data(kCount, 1);
    command("hold=MPI_Isend");
    failure_of(Status::kTimeout,
               [&] { group.all_reduce(data, ReduceOp::kSum, {.timeout = std::chrono::milliseconds(500)}); });
  }
  await([] { return count("requests") == kParts; }, "the receives to be taken back, and the sends to be kept");
  command("clear=MPI_Isend");
  await([] { return count("requests") == 0; }, "the sends to be completed");
  store.set("end", "");
}

}  // namespace backplane::stub_ranks
