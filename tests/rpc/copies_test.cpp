// SPDX-License-Identifier: Apache-2.0
//
// Counts copies of large arrays: each copy needs an allocation of the array's size, and this program counts those of
// both workers and their agents. Agents keep no receive memory, so each received message counts once.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "rpc/workers.hpp"

namespace {

constexpr size_t kBytes = size_t{4} << 20;

std::atomic<int> taken = 0;  // allocations of that size or larger

void count(size_t bytes) {
  if (bytes >= kBytes) taken.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// Counts allocations of the program and its libraries.
extern "C" {
void* __libc_malloc(size_t);            // NOLINT(bugprone-reserved-identifier): glibc's name
void* __libc_calloc(size_t, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void*, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t, size_t);  // NOLINT(bugprone-reserved-identifier)

[[gnu::visibility("default")]] void* malloc(size_t bytes) noexcept {
  count(bytes);
  return __libc_malloc(bytes);
}
[[gnu::visibility("default")]] void* calloc(size_t number, size_t each) noexcept {
  if (each > 0 && number >= kBytes / each) count(kBytes);
  return __libc_calloc(number, each);
}
[[gnu::visibility("default")]] void* realloc(void* data, size_t bytes) noexcept {
  count(bytes);
  return __libc_realloc(data, bytes);
}
[[gnu::visibility("default")]] void* aligned_alloc(size_t unit, size_t bytes) noexcept {
  count(bytes);
  return __libc_memalign(unit, bytes);
}
[[gnu::visibility("default")]] int posix_memalign(void** data, size_t unit, size_t bytes) noexcept {
  count(bytes);
  *data = __libc_memalign(unit, bytes);
  return *data == nullptr ? 12 : 0;  // ENOMEM
}
}

namespace backplane::test {
namespace {

using Numbers = std::vector<double>;
using Array = rpc::Array<double>;

constexpr size_t kCount = kBytes / sizeof(double);

const Array& prepared() {
  static const Array array(Numbers(kCount, 0.5));
  return array;
}

[[maybe_unused]] const bool copies_registered = [] {
  rpc::register_function("array", [](const Array& given) { return given.size(); });
  rpc::register_function("vector", [](const Numbers& given) { return given.size(); });
  rpc::register_function("prepared", [] { return prepared(); });
  rpc::register_function("made", [] { return Numbers(kCount, 0.5); });  // allocates
  return true;
}();

class RpcCopiesTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcCopiesTest, testing::ValuesIn([] {
                           std::vector<std::string> transports = rpc_transports();
                           if (std::erase(transports, "tensorpipe") > 0) {
                             transports.emplace_back("tensorpipe_shm");
                             transports.emplace_back("tensorpipe_uv");
                           }
                           return transports;
                         }()),
                         [](const auto& info) { return info.param; });

// The number of array-sized allocations during the second run of `call`.
template <typename Call>
int taken_by(const Call& call) {
  call();
  taken = 0;
  call();
  return taken;
}

void expect_few_copies(const rpc::Worker& worker) {
  const auto call = [&worker](const char* function, auto&& argument) {
    EXPECT_EQ(worker.rpc_sync<size_t>(1, function, std::forward<decltype(argument)>(argument)), kCount);
  };
  const Numbers kept(kCount, 0.5);
  // Received buffers are allocated once; there is no other allocation.
  EXPECT_EQ(taken_by([&call] { call("array", prepared()); }), 1);
  EXPECT_EQ(taken_by([&worker] { worker.rpc_sync<Array>(1, "prepared"); }), 1);
  const auto array = worker.remote<Array>(1, "prepared");
  EXPECT_EQ(taken_by([&array] { array.to_here(); }), 1);
  // A vector has its own memory, on the receiver and where it is created.
  EXPECT_EQ(taken_by([&call] { call("array", Numbers(kCount, 0.5)); }), 1 + 1);
  EXPECT_EQ(taken_by([&call] { call("vector", Numbers(kCount, 0.5)); }), 1 + 2);
  EXPECT_EQ(taken_by([&worker] { worker.rpc_sync<Array>(1, "made"); }), 1 + 1);
  EXPECT_EQ(taken_by([&worker] { worker.rpc_sync<Numbers>(1, "made"); }), 1 + 2);
  EXPECT_EQ(taken_by([&call] { call("vector", prepared()); }), 2);
  // A value that its owner may change during the send is copied by the sender, and again into a vector of the receiver.
  EXPECT_EQ(taken_by([&call, &kept] { call("array", kept); }), 2);
  EXPECT_EQ(taken_by([&call, &kept] { call("vector", kept); }), 3);
  const auto vector = worker.remote<Numbers>(1, "made");
  EXPECT_EQ(taken_by([&vector] { vector.to_here(); }), 3);
}

TEST_P(RpcCopiesTest, CopiesNoArraysAndVectorsOncePerSide) {
  std::string transport = GetParam();
  std::string options = "?keep_bytes=0";
  if (transport == "tensorpipe_shm") options += "&transports=shm";
  if (transport == "tensorpipe_uv") options += "&transports=uv&channels=basic";
  if (transport.starts_with("tensorpipe")) transport = "tensorpipe";
  if (transport == "ZMQ") options = "";
  prepared();
  in_world(
      transport, 2,
      [](const rpc::Worker& worker) {
        if (worker.rank() == 0) expect_few_copies(worker);
      },
      options);
}

}  // namespace
}  // namespace backplane::test
