// SPDX-License-Identifier: Apache-2.0
//
// The layer `validate`: buffers accessed while in use, and values that are not finite.
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "layers/support.hpp"

namespace backplane::test {
namespace {

// Keeps the first send of each rank in flight, until its buffer has been used also on a busy machine.
const std::string kDelayFirstSend = ",chaos?rules=send once: delay 1s";

class ValidateTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, ValidateTest, testing::ValuesIn(built_backends()));

TEST_P(ValidateTest, DetectsAChangedInput) {
  in_layers("validate" + kDelayFirstSend, GetParam(), 2, [](ProcessGroup& group) {
    std::vector<char> data(200000);
    if (group.rank() == 0) {
      Work work = group.isend(data, 1);
      data[70000] = 1;
      std::string text;
      EXPECT_EQ(failure_of([&] { work.wait(); }, &text), Status::kInvalid);
      EXPECT_TRUE(contains(text,
                           "validate: send #1 to rank 1: the input was changed while in use, in its "
                           "bytes 65536 to 131071"))
          << text;
      EXPECT_EQ(failure_of([&] { work.wait(); }), Status::kInvalid);  // and fails the same way again
      work = group.isend(data, 1);
      work.wait();
      data[70000] = 2;  // no longer in use
    } else {
      group.recv(data, 0);
      group.recv(data, 0);
      EXPECT_EQ(data[70000], 1);
    }
    group.barrier();
  });
}

TEST_P(ValidateTest, DetectsBusyBuffers) {
  in_layers("validate", GetParam(), 2, [](ProcessGroup& group) {
    std::vector<int> data(100);
    if (group.rank() == 0) {
      Work pending = group.irecv(data, 1, 7);
      std::string text;
      const std::string writes =
          "buffer is busy: recv #1 from rank 1 still writes to it; wait for that operation first";
      EXPECT_EQ(failure_of([&] { static_cast<void>(group.irecv(as_buffer(data[99]), 1, 8)); }, &text),
                Status::kInvalid);
      EXPECT_TRUE(contains(text, "the output " + writes)) << text;
      EXPECT_EQ(failure_of([&] { static_cast<void>(group.isend(as_buffer(data[50]), 1, 8)); }, &text),
                Status::kInvalid);
      EXPECT_TRUE(contains(text, "the input " + writes)) << text;
      const int go = 1;
      group.send(as_buffer(go), 1, 1);
      pending.wait();
      group.irecv(as_buffer(data[0]), 0, 9).cancel();
    } else {
      int go = 0;
      group.recv(as_buffer(go), 0, 1);
      group.send(data, 0, 7);
    }
    group.barrier();
  });
}

TEST(ValidateTest, AllowsConcurrentReaders) {
  in_layers("validate" + kDelayFirstSend, "inproc", 2, [](ProcessGroup& group) {
    std::vector<int> data(100);
    if (group.rank() == 0) {
      Work first = group.isend(data, 1, 1);
      Work second = group.isend(as_buffer(data[3]), 1, 2);
      std::string text;
      EXPECT_EQ(failure_of([&] { static_cast<void>(group.irecv(as_buffer(data[99]), 1, 8)); }, &text),
                Status::kInvalid);
      EXPECT_TRUE(contains(text, "the output buffer is busy: send #1 to rank 1 still reads from it")) << text;
      first.wait();
      second.wait();
    } else {
      std::vector<int> in(100);
      group.recv(in, 0, 1);
      group.recv(as_buffer(in[0]), 0, 2);
    }
  });
}

TEST(ValidateTest, WarnsOrIgnoresByOption) {
  for (const bool warn : {true, false}) {
    ScopedLog log;
    in_layers(std::string(warn ? "validate?busy=warn&input=warn&nan=warn" : "validate?busy=off&input=off&nan=off") +
                  kDelayFirstSend,
              "self", 1, [](ProcessGroup& group) {
                std::vector<float> data(20);
                Work first = group.isend(data, 0);
                data[17] = NAN;
                std::vector<float> in(20);
                group.recv(in, 0);
                first.wait();
                Work left = group.irecv(in, 0);
                Work right = group.irecv(as_buffer(in[19]), 0);
                left.cancel();
                right.cancel();
              });
    for (const char* part : {"group 'test': send #1 to rank 0: the input was changed while in use",
                             "recv #2 from rank 0: the output (f32) has NaN at element 17\n",
                             "recv #4 from rank 0: the output buffer is busy: recv #3"}) {
      EXPECT_EQ(contains(log.text(), part), warn) << part << "\n" << log.text();
    }
  }
}

TEST(ValidateTest, WarningsAreLimited) {
  ScopedLog log;
  const auto begin = std::chrono::steady_clock::now();
  in_layers("validate?nan=warn", "self", 1, [](ProcessGroup& group) {
    const std::vector<float> out(4, NAN);
    std::vector<float> in(4);
    for (int i = 0; i < 300; ++i) group.sendrecv(out, 0, in, 0);
  });
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_TRUE(contains(log.text(), "has NaN at element 0")) << log.text();
  EXPECT_LE(lines_with(log.text(), "has NaN"), seconds + 1) << log.text();
}

template <typename T>
void expect_found(T value, const char* words) {
  in_layers("validate?nan=error", "self", 1, [value, words](ProcessGroup& group) {
    std::vector<T> data(40000, T(1));
    std::vector<T> in(40000);
    Work fine = group.isend(data, 0);
    group.recv(in, 0);
    fine.wait();
    data[39000] = data[39999] = value;
    Work odd = group.isend(data, 0);
    std::string text;
    EXPECT_EQ(failure_of([&] { group.recv(in, 0); }, &text), Status::kInvalid);
    odd.wait();
    EXPECT_TRUE(contains(text, std::string(" has ") + words + " at element 39000, the first of 2 that are not finite"))
        << text;
    // Only the bytes that arrived are checked.
    Work little = group.isend(as_buffer(data[0]), 0);
    group.recv(in, 0);
    little.wait();
  });
}

TEST(ValidateTest, DetectsNanAndInfinity) {
  expect_found(std::numeric_limits<float>::quiet_NaN(), "NaN");
  expect_found(-std::numeric_limits<float>::infinity(), "an infinity");
  expect_found(std::numeric_limits<double>::infinity(), "an infinity");
  expect_found(std::numeric_limits<double>::quiet_NaN(), "NaN");
}

#ifdef BACKPLANE_TEST_gloo
TEST(ValidateTest, ChecksNativeCollectives) {
  in_layers("validate?nan=error", "gloo", 2, [](ProcessGroup& group) {
    std::vector<double> data(10, 1);
    group.all_reduce(data);
    if (group.rank() == 1) data[4] = NAN;
    std::string text;
    EXPECT_EQ(failure_of([&] { group.all_reduce(data); }, &text), Status::kInvalid);
    EXPECT_TRUE(contains(text, "all_reduce #2: the output (f64) has NaN at element 4")) << text;
  });
}
#endif

// A program that drops its handle may unmap the buffer once it has learned otherwise that the operation is done.
TEST(ValidateTest, SkipsUnmappedMemory) {
  in_layers("validate" + kDelayFirstSend, "inproc", 2, [](ProcessGroup& group) {
    constexpr size_t kSize = size_t{1} << 20;
    if (group.rank() == 0) {
      void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(memory, MAP_FAILED);
      static_cast<void>(group.isend(std::span(static_cast<char*>(memory), kSize), 1, 1));
      int answer = 0;
      group.recv(as_buffer(answer), 1, 2);
      munmap(memory, kSize);
    } else {
      std::vector<char> data(kSize);
      group.recv(data, 0, 1);
      const int answer = 1;
      group.send(as_buffer(answer), 0, 2);
    }
  });
}

TEST(ValidateTest, RejectsUnknownOptions) {
  EXPECT_TRUE(contains(refusal("validate?nan=maybe"), "'maybe' is not one of error|warn|off"));
  EXPECT_TRUE(contains(refusal("validate?nann=off"), "Did you mean 'nan'?"));
}

}  // namespace
}  // namespace backplane::test
