// SPDX-License-Identifier: Apache-2.0
//
// Messages and collectives of more elements than an int counts, with an MPI in this process alone. Most tests lower
// the limit instead of using gigabytes. BACKPLANE_MPI_LIBRARY names the library.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "api.hpp"
#include "library.hpp"

namespace backplane::mpi {
namespace {

constexpr int kLimit = 1000;

// One per limit: a process initialises MPI once.
Api& api_of(int limit) {
  static const Library library = [] {
    Library opened = open_library("");
    prepare(opened);
    return opened;
  }();
  static const auto lowered = make_api(library, kLimit);
  static const auto real = make_api(library);
  static const bool initialised = [] {
    const bool first = real->init() && !lowered->init();
    std::atexit([] { real->finalize(); });
    return first;
  }();
  EXPECT_TRUE(initialised);
  return limit == kLimit ? *lowered : *real;
}

Comm alone(Api& api) {
  const std::vector<int> members = {0};
  return api.create(members, 0);
}

void finish(Api& api, Request& request) {
  while (!api.test(request)) {
  }
}

// Sends `sent` to this process itself.
void expect_arrives(Api& api, Comm comm, std::span<const std::byte> sent) {
  constexpr int kTag = 5;
  Request send = api.isend(sent.data(), sent.size(), 0, kTag, comm);
  Envelope envelope;
  std::optional<Message> message;
  while (!message) message = api.improbe(kAnySource, kAnyTag, comm, &envelope);
  EXPECT_EQ(envelope.source, 0);
  EXPECT_EQ(envelope.tag, kTag);
  ASSERT_EQ(envelope.bytes, sent.size());
  std::vector<std::byte> received(envelope.bytes);
  Request receive = api.imrecv(received.data(), received.size(), *message);
  finish(api, receive);
  finish(api, send);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), received.begin()));
}

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
  return bytes;
}

TEST(MpiCounts, MessagesBeyondTheLimitArriveWhole) {
  Api& api = api_of(kLimit);
  const Comm comm = alone(api);
  for (const size_t size : {0U, 1U, 999U, 1000U, 1001U, 1024U, 1025U, 5003U, 512U * 300U, 1'000'003U}) {
    SCOPED_TRACE(size);
    expect_arrives(api, comm, pattern(size));
  }
  api.free(comm);
}

// The operation on `count` elements beyond the limit; alone, a rank gets its own input.
void expect_copies(Api& api, Comm comm, uint32_t kind, Blocks* blocks) {
  constexpr uint64_t kCount = 5 * kLimit;
  std::vector<int32_t> in(kCount);
  std::iota(in.begin(), in.end(), 7);
  const bool in_place = kind == BP_ALL_REDUCE || kind == BP_BROADCAST;
  std::vector<int32_t> out = in_place ? in : std::vector<int32_t>(kCount);
  CollectiveCall call;
  call.kind = kind;
  call.comm = comm;
  call.in = in.data();
  call.out = out.data();
  call.count = kCount;
  call.type = kInt32;
  call.op = kMax;
  call.blocks = blocks;
  Request request = api.start(call);
  finish(api, request);
  EXPECT_EQ(in, out);
}

TEST(MpiCounts, CollectivesBeyondTheLimitUseTheFunctionsOfMpi4) {
  Api& api = api_of(kLimit);
  if (api.max_count() == kLimit) GTEST_SKIP() << api.version() << " has none";
  const Comm comm = alone(api);
  for (const uint32_t kind : {BP_BROADCAST, BP_REDUCE, BP_ALL_REDUCE, BP_GATHER, BP_SCATTER, BP_ALL_GATHER,
                              BP_REDUCE_SCATTER, BP_ALL_TO_ALL}) {
    SCOPED_TRACE(kind);
    expect_copies(api, comm, kind, nullptr);
  }
  for (const uint32_t kind : {BP_GATHERV, BP_SCATTERV, BP_ALL_GATHERV, BP_REDUCE_SCATTERV, BP_ALL_TO_ALLV}) {
    SCOPED_TRACE(kind);
    Blocks blocks{{5 * kLimit}, {0}, {5 * kLimit}, {0}, {}};
    if (kind == BP_REDUCE_SCATTERV) blocks.out_counts.clear();
    expect_copies(api, comm, kind, &blocks);
    EXPECT_TRUE(blocks.narrow[0].empty()) << "the function for int counts was used";
  }
  api.free(comm);
}

TEST(MpiCounts, CollectivesWithinTheLimitUseThoseOfInt) {
  Api& api = api_of(0);
  const Comm comm = alone(api);
  Blocks blocks{{5 * kLimit}, {0}, {5 * kLimit}, {0}, {}};
  expect_copies(api, comm, BP_ALL_TO_ALLV, &blocks);
  EXPECT_EQ(blocks.narrow[0], std::vector<int>{5 * kLimit});
  api.free(comm);
}

TEST(MpiCounts, ASendThatFailsLeavesNoType) {
  void* const stub = ::dlopen(std::getenv("BACKPLANE_MPI_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  const auto count = reinterpret_cast<int (*)(const char*)>(::dlsym(stub, "backplane_stub_count"));
  if (count == nullptr) GTEST_SKIP() << "only the stub counts its types";
  Api& api = api_of(kLimit);
  const Comm comm = alone(api);
  const auto data = pattern(5003);
  EXPECT_THROW(api.isend(data.data(), data.size(), 1, 5, comm), sdk::Failure);  // there is no rank 1
  EXPECT_EQ(count("types"), 0);
  api.free(comm);
}

// Needs 4 GiB.
TEST(MpiCounts, DISABLED_AMessageOfMoreThanTwoGibibytes) {
  Api& api = api_of(0);
  const Comm comm = alone(api);
  expect_arrives(api, comm, pattern((size_t{1} << 31U) + 8));
  api.free(comm);
}

}  // namespace
}  // namespace backplane::mpi
