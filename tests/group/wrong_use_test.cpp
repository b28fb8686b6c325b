// SPDX-License-Identifier: Apache-2.0
//
// Errors of wrong use.
#include <fstream>

#include "backplane/adapters/dlpack.hpp"
#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using std::chrono::milliseconds;

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

class MismatchTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, MismatchTest, testing::ValuesIn(built_backends()));

// No rank gets a wrong result when ranks pass different counts, and all get the same error.
TEST_P(MismatchTest, CountsThatDifferBetweenRanks) {
  constexpr int kWorld = 3;
  const Store store = Store::inproc();
  std::string texts[kWorld];
  on_ranks(kWorld, [&store, &texts](int rank) {
    GroupOptions options = group_options(GetParam(), store, rank, kWorld);
    ProcessGroup group = ProcessGroup::create(options);
    std::vector<float> data(rank == 1 ? 8 : 4);
    const CallOptions soon = {.timeout = std::chrono::seconds(10)};
    EXPECT_EQ(failure_of([&] { group.all_reduce(data, ReduceOp::kSum, soon); }, &texts[rank]), Status::kInvalid)
        << texts[rank];
    EXPECT_EQ(failure_of([&] { group.barrier(); }), Status::kInvalid);  // the first cause
  });
  int with_operation = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    if (texts[rank].starts_with("group 'test' is broken")) continue;  // before this rank's call
    ++with_operation;
    expect_words(texts[rank], {"rank " + std::to_string(rank) + " of group 'test'",
                               rank == 1 ? "all_reduce (f32 x 8) #1" : "all_reduce (f32 x 4) #1"});
  }
  EXPECT_GT(with_operation, 0);
  const size_t verb = std::min(texts[0].find(" entered all_reduce sum (f32 x "), texts[0].size());
  const std::string sentence = texts[0].substr(texts[0].rfind("rank ", verb));  // "rank 1 (host, pid 7) entered ..."
  expect_words(sentence, {"pid ", "(f32 x 8)", " as #1 where rank ", "(f32 x 4)"});
  for (const std::string& text : texts) {
    expect_words(text, {sentence});
    EXPECT_LT(text.size(), size_t{BP_ERROR_TEXT_SIZE - 1}) << "it was cut: " << text;
  }
}

// Also if the counts lead to different algorithms, and if large data is sent in slices of equal size.
TEST_P(MismatchTest, LargeCountsThatDifferBetweenRanks) {
  constexpr size_t kMega = size_t{1} << 18;  // floats of a MiB
  struct Counts {
    int world;
    size_t fewer;
    size_t more;
  };
  for (const Counts& counts :
       {Counts{2, kMega / 8, kMega / 4}, Counts{2, kMega, 2 * kMega}, Counts{2, 2 * kMega, 4 * kMega},
        Counts{2, 4 * kMega, 4 * kMega + 1}, Counts{3, 4 * kMega, 8 * kMega}}) {
    const Store store = Store::inproc();
    on_ranks(counts.world, [&store, &counts](int rank) {
      GroupOptions options = group_options(GetParam(), store, rank, counts.world, std::chrono::seconds(60));
      ProcessGroup group = ProcessGroup::create(options);
      std::vector<float> data(rank == 1 ? counts.more : counts.fewer, 1);
      EXPECT_EQ(failure_of([&] { group.all_reduce(data); }), Status::kInvalid)
          << counts.fewer << " and " << counts.more << " by " << counts.world;
    });
  }
}

class WrongUseTest : public testing::Test {
 protected:
  // The error of creating a group.
  static std::string refusal(const GroupOptions& options, Status status = Status::kInvalid) {
    std::string text;
    EXPECT_EQ(failure_of([&options] { ProcessGroup::create(options); }, &text), status) << text;
    return text;
  }
  // The error of an operation on a group of one rank.
  template <typename Call>
  static std::string complaint(const Call& call) {
    ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
    std::string text;
    EXPECT_EQ(failure_of([&call, &group] { call(group); }, &text), Status::kInvalid) << text;
    group.barrier();  // the group is not broken
    return text;
  }
  static GroupOptions of(const std::string& backend) { return group_options(backend, Store::inproc(), 0, 1); }
};

TEST_F(WrongUseTest, UnknownBackend) {
  expect_words(refusal(of("inprok")),
               {"unknown backend 'inprok'", "Did you mean 'inproc'?", "Available: ", "looked in"});
}

TEST_F(WrongUseTest, UnknownBackendNamesRejectedFiles) {
  const ScopedDirectory directory;
  std::ofstream(directory.path() / "backplane_broken.so") << "no ELF file";
  const ScopedVariable path("BACKPLANE_PLUGIN_PATH", directory.path().string());
  expect_words(refusal(of("missing")), {"backplane_broken.so", directory.path().string()});
  expect_words(refusal(of("broken"), Status::kUnsupported), {"backplane_broken.so", "ELF"});
}

TEST_F(WrongUseTest, TruncatedPlugin) {
  const ScopedDirectory directory;
  std::ofstream(directory.path() / "backplane_short.so") << "\x7f"
                                                         << "ELF";
  const ScopedVariable path("BACKPLANE_PLUGIN_PATH", directory.path().string());
  expect_words(refusal(of("short"), Status::kUnsupported), {"backplane_short.so", "it is truncated"});
}

TEST_F(WrongUseTest, UnreadablePluginDirectory) {
  const ScopedDirectory directory;
  std::ofstream(directory.path() / "file") << "not a directory";
  const ScopedVariable path("BACKPLANE_PLUGIN_PATH", (directory.path() / "file").string());
  expect_words(refusal(of("missing")), {"/file (", "Not a directory"});
}

TEST_F(WrongUseTest, Selection) {
  expect_words(refusal(of("self?threads=2")), {"self has no option 'threads'"});
  expect_words(refusal(of("self?threads")), {"expected key=value"});
  expect_words(refusal(of("tpu:self")), {"unknown device 'tpu'"});
  expect_words(refusal(of("cpu:self,cpu:inproc")), {"self and inproc serve the same device; name one backend"});
  expect_words(refusal(of("a b")), {"'a b' is not a valid name"});
}

TEST_F(WrongUseTest, EnvironmentChoosesTheBackend) {
  const ScopedVariable backend("BACKPLANE_BACKEND", "self");
  EXPECT_EQ(ProcessGroup::create(of("")).backend(), "self");
  const ScopedVariable wrong("BACKPLANE_BACKEND", "nonsense");
  expect_words(refusal(of("")), {"unknown backend 'nonsense'"});
}

TEST_F(WrongUseTest, MissingEnvironment) {
  const ScopedVariable addr("MASTER_ADDR", std::nullopt);
  GroupOptions options;
  options.backend = "self";
  options.rank = 0;
  options.world_size = 1;
  expect_words(refusal(options), {"MASTER_ADDR is not set"});
}

TEST_F(WrongUseTest, PortInUse) {
  const StoreServer server;
  GroupOptions options;
  options.backend = "inproc";
  options.init_method = "tcp://127.0.0.1:" + std::to_string(server.port());
  options.rank = 0;
  options.world_size = 2;
  expect_words(refusal(options, Status::kResource), {std::to_string(server.port()), "in use"});
}

TEST_F(WrongUseTest, RankOutOfRange) {
  expect_words(refusal(group_options("inproc", Store::inproc(), 4, 4)), {"rank 4 is not in 0..3"});
  expect_words(refusal(group_options("inproc", Store::inproc(), 0, 0)), {"world_size 0"});
}

TEST_F(WrongUseTest, MissingRanksAreNamed) {
  const Store store = Store::inproc();
  const std::string text = refusal(group_options("inproc", store, 0, 3, milliseconds(50)), Status::kTimeout);
  expect_words(text, {"ranks 1 and 2 of 3 did not join"});
}

// Waiting ranks get the reason, also from the rank that serves the store, and all can try again.
TEST_F(WrongUseTest, AFailedChoiceFailsAllRanksAtOnce) {
  const ScopedDirectory directory;
  const std::string file = "file://" + (directory.path() / "store").string();
  const std::string tcp = "tcp://127.0.0.1:" + std::to_string(StoreServer().port());
  const Store store = Store::inproc();
  for (const auto& [meeting, wrong] : {std::pair(std::string(), 1), std::pair(file, 1), std::pair(tcp, 0)}) {
    std::string texts[2];
    on_ranks(2, [&, &where = meeting, who = wrong](int rank) {
      GroupOptions options = group_options(rank == who ? "inporc" : "inproc", store, rank, 2);
      if (!where.empty()) options.store.reset();
      options.init_method = where;
      const auto come = [&] { rank == who ? init_process_group(options) : ProcessGroup::create(options); };
      EXPECT_EQ(failure_of(come, &texts[rank]), Status::kInvalid);
      options.backend = "inproc";
      ProcessGroup::create(options).barrier();
    });
    expect_words(texts[wrong], {"inporc"});
    EXPECT_EQ(texts[1 - wrong], "rank " + std::to_string(wrong) + " cannot join group 'test': " + texts[wrong]);
  }
}

TEST_F(WrongUseTest, WrongWorldSizeAndDuplicateRank) {
  const Store store = Store::inproc();
  std::string sizes[2];
  on_ranks(2, [&store, &sizes](int rank) {
    const GroupOptions options = group_options("inproc", store, rank, 2 + rank);
    const Status status = failure_of([&options] { ProcessGroup::create(options); }, &sizes[rank]);
    EXPECT_EQ(status, Status::kInvalid);
  });
  for (const std::string& text : sizes)
    expect_words(text, {"the ranks disagree on the world size", "with 2", "with 3"});
  const StoreServer server;
  std::string texts[2];
  std::atomic<int> refused = 0;
  on_ranks(2, [&server, &texts, &refused](int i) {
    const Store mine = Store::connect("127.0.0.1", server.port());
    const GroupOptions options = group_options("inproc", mine, 0, 2, milliseconds(500));
    if (failure_of([&options] { ProcessGroup::create(options); }, &texts[i]) == Status::kInvalid) refused.fetch_add(1);
  });
  EXPECT_GE(refused.load(), 1);
  expect_words(texts[0] + texts[1], {"rank 0 is claimed by two processes: ", "pid "});
}

// Each rank gets the error well before its timeout.
TEST_F(WrongUseTest, DifferentChoices) {
  const Store store = Store::inproc();
  std::string texts[3];
  on_ranks(3, [&store, &texts](int rank) {
    const GroupOptions options = group_options(rank == 1 ? "self" : "inproc", store, rank, 3);
    EXPECT_EQ(failure_of([&options] { ProcessGroup::create(options); }, &texts[rank]), Status::kInvalid);
  });
  for (const std::string& text : texts) expect_words(text, {"disagree", "inproc", "self", "rank 1"});
}

TEST_F(WrongUseTest, ABackendThatStartsOnlyOnSomeRanks) {
  BackendHandlers handlers;
  handlers.capabilities = {{0, BP_BARRIER, 0, 0, 0}};
  handlers.init = [](const bp_init& init, const std::any&, bp_agent* agent) {
    if (init.rank == 1) throw std::runtime_error("there is no fabric on this host");
    const bp_backend& self = backend_type("inproc").descriptor();
    if (self.init(&self, &init, agent, nullptr) != BP_OK) throw std::runtime_error("inproc did not start");
  };
  register_backend("halfway", handlers);
  const Store store = Store::inproc();
  std::string texts[2];
  on_ranks(2, [&store, &texts](int rank) {
    const GroupOptions options = group_options("halfway", store, rank, 2);
    EXPECT_EQ(failure_of([&options] { ProcessGroup::create(options); }, &texts[rank]), Status::kInternal);
  });
  for (const std::string& text : texts) expect_words(text, {"rank 1", "no fabric on this host"});
}

TEST_F(WrongUseTest, CountsTypesAndOverlap) {
  std::vector<float> four(4);
  std::vector<float> five(5);
  std::vector<double> doubles(4);
  const auto all = [](const std::string& text, const std::vector<std::string>& words) { expect_words(text, words); };
  all(complaint([&](ProcessGroup& g) { g.all_reduce(four, five); }), {"all_reduce", "5 elements", "expected 4"});
  all(complaint([&](ProcessGroup& g) { g.all_reduce(four, doubles); }), {"different dtypes"});
  all(complaint([&](ProcessGroup& g) { g.all_reduce(four, ReduceOp::kBitOr); }), {"bor is not defined for f32"});
  all(complaint([&](ProcessGroup& g) { g.broadcast(four, 1); }), {"root 1 is not a rank"});
  all(complaint([&](ProcessGroup& g) { g.send(four, -1); }), {"peer -1"});
  all(complaint([&](ProcessGroup& g) { g.all_gather(four, five); }), {"all_gather", "5 elements, expected 4"});
  all(complaint([&](ProcessGroup& g) { g.all_gatherv(four, five, Blocks{{3}}); }),
      {"input has 4 elements, expected 3"});
  all(complaint([&](ProcessGroup& g) { g.all_gatherv(four, five, Blocks{{4}, {2}}); }), {"is not inside its 5"});
  all(complaint([&](ProcessGroup& g) { g.all_gatherv(four, five, Blocks{{1, 2}}); }), {"Blocks need one count"});
  const std::span<float> whole(five);
  all(complaint([&](ProcessGroup& g) { g.all_reduce(whole.first(4), whole.last(4)); }), {"input and output overlap"});
  all(complaint([&](ProcessGroup& g) { g.all_reduce(Buffer(nullptr, 3, DType::kF32)); }), {"NULL"});
}

TEST_F(WrongUseTest, MemoryThatNoBackendServes) {
  float value = 0;
  const Buffer cuda(&value, 1, DType::kF32, Device::cuda(0));
  ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
  std::string text;
  EXPECT_EQ(failure_of([&group, &cuda] { group.all_reduce(cuda); }, &text), Status::kUnsupported);
  expect_words(text, {"backend self", "all_reduce (f32 x 1)", "cuda memory"});
  group = ProcessGroup::create(group_options("cpu:self", Store::inproc(), 0, 1));
  EXPECT_EQ(failure_of([&group, &cuda] { group.all_reduce(cuda); }, &text), Status::kInvalid);
  expect_words(text, {"no backend for cuda memory"});
}

TEST_F(WrongUseTest, NullHandlesOfTheCApi) {
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(bp_group_run(nullptr, nullptr, &err), BP_INVALID);
  EXPECT_EQ(bp_init_backend(nullptr, nullptr, "x", 0, 1, nullptr, 0, nullptr, &err), BP_INVALID);
  EXPECT_EQ(bp_store_set(nullptr, "k", "v", 1, 0, &err), BP_INVALID);
  EXPECT_STREQ(err.text, "`store` must be a bp_store. (null)");
}

// By the type codes of DLPack 1.1.
TEST(DlpackTest, EachDtypeHasItsCounterpart) {
  struct Pair {
    uint8_t code;
    uint8_t bits;
    DType dtype;
  };
  for (const Pair& pair :
       {Pair{0, 8, DType::kI8}, Pair{0, 16, DType::kI16}, Pair{0, 32, DType::kI32}, Pair{0, 64, DType::kI64},
        Pair{1, 8, DType::kU8}, Pair{1, 16, DType::kU16}, Pair{1, 32, DType::kU32}, Pair{1, 64, DType::kU64},
        Pair{2, 16, DType::kF16}, Pair{2, 32, DType::kF32}, Pair{2, 64, DType::kF64}, Pair{4, 16, DType::kBF16},
        Pair{5, 64, DType::kC64}, Pair{5, 128, DType::kC128}, Pair{6, 8, DType::kBool}, Pair{10, 8, DType::kF8E4M3},
        Pair{12, 8, DType::kF8E5M2}}) {
    const DLTensor tensor = {nullptr, {kDLCPU, 0}, 0, {pair.code, pair.bits, 1}, nullptr, nullptr, 0};
    EXPECT_EQ(buffer_of(tensor).dtype(), pair.dtype) << int{pair.code} << " with " << int{pair.bits} << " bits";
  }
  const DLTensor packed_bits = {nullptr, {kDLCPU, 0}, 0, {1, 1, 1}, nullptr, nullptr, 0};
  EXPECT_EQ(failure_of([&packed_bits] { buffer_of(packed_bits); }), Status::kInvalid);
}

TEST(DlpackTest, TensorsAreBuffers) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {3, 1};
  DLTensor tensor = {data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
  EXPECT_EQ(buffer_of(tensor).count(), 6U);
  EXPECT_EQ(buffer_of(tensor).dtype(), DType::kF32);
  ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
  group.all_reduce(buffer_of(tensor));
  std::string text;
  strides[0] = 1;
  EXPECT_EQ(failure_of([&tensor] { buffer_of(tensor); }, &text), Status::kInvalid);
  expect_words(text, {"it is not contiguous"});
  tensor.strides = nullptr;
  tensor.dtype.lanes = 4;
  EXPECT_EQ(failure_of([&tensor] { buffer_of(tensor); }, &text), Status::kInvalid);
  expect_words(text, {"it has vector elements"});
}

}  // namespace
}  // namespace backplane::test
