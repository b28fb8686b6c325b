// SPDX-License-Identifier: Apache-2.0
//
// backplane bench: measurements, detection of wrong results, output. No test depends on a time.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// The shortest run: each row has the minimum of blocks.
Words bench(const Words& more) {
  Words words = {"bench", "--seconds", "0.001"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json results_of(const std::string& path) {
  const Json json = Json::parse(read_file(path), nullptr, false);
  EXPECT_TRUE(json.is_object()) << read_file(path);
  return json.is_object() ? json["rows"] : Json::array();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

constexpr const char* kAll =
    "barrier,broadcast,reduce,all_reduce,gather,scatter,all_gather,reduce_scatter,all_to_all,send_recv,bandwidth,"
    "overlap";

TEST(Bench, MeasuresAndVerifiesEveryOperation) {
  const ScopedDirectory place;
  const Outcome outcome = run(bench({"--backend", "inproc", "-n", "3", "--operation", kAll, "--sizes", "4,1K",
                                     "--check", "--json", place.file("json")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json results = results_of(place.file("json"));
  EXPECT_EQ(results.size(), 1U + 11 * 2) << results;
  for (const Json& row : results) {
    EXPECT_EQ(row["ranks"], 3);
    EXPECT_EQ(row["backend"], "inproc");
    EXPECT_TRUE(row["wrong"].empty()) << row;
    EXPECT_GE(row["samples"], 5);
    EXPECT_LE(row["p1_us"], row["p50_us"]);
    EXPECT_LE(row["p50_us"], row["p99_us"]);
    EXPECT_EQ(row.contains("hidden_percent"), row["operation"] == "overlap");
  }
}

#if defined(BACKPLANE_TEST_shm) && defined(BACKPLANE_TEST_zmq)
TEST(Bench, MeasuresComposites) {
  const Words words = {"--backend", "shm+zmq?io_threads=1", "-n", "3", "--operation", kAll, "--sizes", "4,64K"};
  Words checked = bench(words);
  checked.emplace_back("--check");
  const Outcome outcome = run(checked, {{{"BACKPLANE_IMAGINED_HOSTS", "0,1,0"}}});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
}
#endif

TEST(Bench, ComputesBandwidthLikeNcclTests) {
  const ScopedDirectory place;
  const Outcome outcome = run(bench({"--backend", "inproc", "-n", "4", "--operation", "all_reduce,all_gather,broadcast",
                                     "--sizes", "64K", "--json", place.file("json")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json results = results_of(place.file("json"));
  EXPECT_EQ(results.size(), 3U) << results;
  for (const Json& row : results) {
    const bool gathers = row["operation"] == "all_gather";
    const double data = gathers ? 4 * 65536 : 65536;
    const double factor = row["operation"] == "all_reduce" ? 1.5 : gathers ? 0.75 : 1;
    const double algbw = data / row["p50_us"].get<double>() * 1e-3;
    EXPECT_NEAR(row["algbw_gbps"], algbw, algbw * 1e-6) << row;
    EXPECT_NEAR(row["busbw_gbps"], algbw * factor, algbw * 1e-6) << row;
  }
}

TEST(Bench, WritesCsvAndSvg) {
  const ScopedDirectory place;
  const Outcome outcome = run(bench({"--backend", "inproc", "-n", "1,2", "--sizes", "4:1K:16", "--csv",
                                     place.file("csv"), "--plot", place.file("svg")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> lines = lines_of(read_file(place.file("csv")));
  ASSERT_EQ(lines.size(), 1U + 2 * 3);  // 4, 64, 1024
  for (const std::string& line : lines) EXPECT_EQ(std::count(line.begin(), line.end(), ','), 12) << line;
  EXPECT_TRUE(lines[1].starts_with("\"inproc\",1,all_reduce,4,")) << lines[1];
  const std::string svg = read_file(place.file("svg"));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  size_t depth = 0;  // of nested elements: all must be closed
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    if (svg[at + 1] == '/') {
      ASSERT_GT(depth, 0U);
      --depth;
    } else if (svg[end - 1] != '/') {
      ++depth;
    }
  }
  EXPECT_EQ(depth, 0U);
  EXPECT_TRUE(contains(svg, "all_reduce, 2 ranks"));
  const auto count = [&svg](const std::string& part) {
    int found = 0;
    for (size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<polyline"), 2) << "one for each number of ranks";
  EXPECT_EQ(count("<circle"), 2 * 3) << "with a point for each size";
  EXPECT_FALSE(contains(svg, "href")) << "it must not reference another file";
}

TEST(Bench, RecordsMachineDateAndCommand) {
  const ScopedDirectory place;
  const Outcome outcome = run(bench({"--backend", "inproc", "--sizes", "4", "--json", place.file("json")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(read_file(place.file("json")));
  EXPECT_EQ(json["format"], "backplane-bench/2");
  EXPECT_EQ(json["date"].get<std::string>().size(), std::string("2026-11-26T07:05:00Z").size());
  EXPECT_EQ(json["command"], "backplane bench --seconds 0.001 --backend inproc --sizes 4 --json " + place.file("json"));
  for (const char* const key : {"host", "system", "cpu", "cores", "memory_gib"}) {
    EXPECT_TRUE(json["machine"].contains(key)) << key;
  }
  EXPECT_TRUE(json["libraries"].contains("backplane") && json["libraries"].contains("inproc")) << json["libraries"];
}

TEST(Bench, DrawsSavedResults) {
  const ScopedDirectory place;
  const auto save = [&place](const std::string& name, const std::string& backend) {
    std::ofstream(place.file(name)) << R"({"format": "backplane-bench/2", "rows": [{"backend": ")" << backend
                                    << R"(", "ranks": 2, "operation": "all_reduce", "bytes": 4, "p50_us": 3.5}]})";
  };
  save("monday.json", "gloo");
  save("friday.json", "peer <x>");
  const auto draw = [&place](const std::string& files) {
    return run({"bench", "--from", files, "--plot", place.file("svg"), "--title", "Two days"});
  };
  const std::string monday = place.file("monday.json");
  ASSERT_EQ(draw(monday + "," + place.file("friday.json")).code, 0);
  const std::string svg = read_file(place.file("svg"));
  for (const char* const part : {">Two days<", "all_reduce, 2 ranks", ">gloo<", ">peer &lt;x><"}) {
    EXPECT_TRUE(contains(svg, part)) << part << svg;
  }
  save("friday.json", "gloo");
  const Outcome both = draw(monday + "," + place.file("friday.json"));
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_TRUE(contains(both.out, "gloo (monday)") && contains(both.out, "gloo (friday)")) << both.out;
  std::ofstream(monday) << R"({"format": "backplane-bench/1"})";
  EXPECT_TRUE(contains(draw(monday).err, "monday.json: the format is \"backplane-bench/1\", expected"))
      << draw(monday).err;
  std::ofstream(monday) << R"({"format": "backplane-bench/2", "rows": [{}]})";
  EXPECT_TRUE(contains(draw(monday).err, "not a results file of 'backplane bench --json'")) << draw(monday).err;
  EXPECT_EQ(draw("/nowhere.json").code, 1);
  EXPECT_EQ(run({"bench", "--from", monday, "--check"}).code, 2);
}

#ifdef BACKPLANE_TEST_zmq
TEST(Bench, TunesAuto) {
  const ScopedDirectory place;
  const std::string file = place.file("made/tuning/table.json");
  const Setting tuned = {{{"BACKPLANE_TUNING_FILE", file}, {"BACKPLANE_PLUGINS_ALLOW", "zmq"}}};
  Words words = bench({"--backend", "zmq", "--backend", "zmq?io_threads=2", "--backend", "inproc", "--sizes", "4,1K"});
  words.emplace_back("--tune");
  const mode_t mask = ::umask(0077);
  const Outcome outcome = run(words, tuned);
  ::umask(mask);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  struct stat facts {};
  ASSERT_EQ(::stat(file.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0644U) << "everyone can read it";
  for (const char* const level : {"made", "made/tuning"}) {
    ASSERT_EQ(::stat(place.file(level).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0755U) << level;
  }
  const Json measured = Json::parse(read_file(file))["measured"];
  ASSERT_EQ(measured.size(), 2U) << measured;
  EXPECT_EQ(measured[0]["us"].size(), 2U) << "only backends without settings\n" << measured;
  const Outcome explained = run({"explain", "-n", "2"}, tuned);
  ASSERT_EQ(explained.code, 0) << explained.err;
  EXPECT_TRUE(explained.out.starts_with("zmq: 2 ranks, all of which can use it; measured ")) << explained.out;
  EXPECT_TRUE(contains(explained.out, " us at 4 B")) << explained.out;
}

TEST(Explain, ExplainsFailures) {
  const Outcome untuned =
      run({"explain", "-n", "3"}, {{{"BACKPLANE_TUNING_FILE", "/dev/null"}, {"BACKPLANE_PLUGINS_ALLOW", "zmq"}}});
  ASSERT_EQ(untuned.code, 0) << untuned.err;
  EXPECT_EQ(untuned.out, "zmq: 3 ranks, all of which can use it\n");
  EXPECT_TRUE(contains(untuned.err, "auto ignores the tuning table /dev/null: ")) << untuned.err;
  EXPECT_EQ(run({"explain", "-n", "1"}).out, "self: the world has one rank\n");
  const Outcome nothing = run({"explain"}, {{{"BACKPLANE_PLUGINS_ALLOW", "inproc"}}});
  EXPECT_EQ(nothing.code, 1);
  EXPECT_TRUE(contains(nothing.err, "auto found no backend")) << nothing.err;
}

TEST(Bench, ComparesBackends) {
  const ScopedDirectory place;
  const Outcome outcome = run(bench({"--backend", "zmq", "--backend", "zmq?io_threads=2", "--backend", "inproc",
                                     "--sizes", "4", "--rounds", "2", "--check", "--json", place.file("json")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json results = results_of(place.file("json"));
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(results[0]["backend"], "zmq");
  EXPECT_EQ(results[1]["backend"], "zmq?io_threads=2");
  EXPECT_EQ(results[0]["samples"], results[1]["samples"]) << "their blocks alternate";
  EXPECT_EQ(results[2]["backend"], "inproc");
}

TEST(Bench, NamesTheFailedRank) {
  const Outcome outcome =
      run(bench({"--backend", "zmq", "--sizes", "4"}), {{{"BACKPLANE_LAYERS", "chaos?rules=rank 1 after 10: crash"}}});
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.err, "backplane: rank 1 (")) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}
#endif

TEST(Bench, DetectsAWrongResult) {
  const Outcome outcome =
      run(bench({"--backend", "specimen", "--sizes", "4,64K", "--check"}),
          {{{"BACKPLANE_PLUGIN_PATH", BACKPLANE_TEST_SPECIMEN_FOLDER}, {"SPECIMEN_MUTANT", "collectives.all-reduce"}}});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "as element 16383 of 16384")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "WRONG")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "ok")) << "4 bytes are\n" << outcome.out;
}

TEST(Bench, DetectsAWrongResultOfEachCollective) {
  const std::pair<const char*, const char*> bugs[] = {
      {"broadcast", "broadcast"},  {"reduce", "reduce"},         {"gather", "gather"},
      {"scatter", "scatter"},      {"all_gather", "all-gather"}, {"reduce_scatter", "reduce-scatter"},
      {"all_to_all", "all-to-all"}};
  for (const auto& [operation, mutant] : bugs) {
    const Outcome outcome =
        run(bench({"--backend", "specimen", "--operation", operation, "--sizes", "256K", "--check"}),
            {{{"BACKPLANE_PLUGIN_PATH", BACKPLANE_TEST_SPECIMEN_FOLDER},
              {"SPECIMEN_MUTANT", std::string("collectives.") + mutant}}});
    EXPECT_EQ(outcome.code, 1) << operation << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "WRONG")) << operation << outcome.out;
  }
}

TEST(Bench, SkipsPeersThatAreNotInstalled) {
  const ScopedDirectory place;
  const Outcome outcome =
      run(bench({"--backend", "inproc", "--peer", "openmpi", "--sizes", "4", "--json", place.file("json")}),
          {{{"PATH", "/nowhere"}}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "skipped: peer openmpi: mpirun.openmpi is not installed (Debian: openmpi-bin)"))
      << outcome.out;
  EXPECT_EQ(Json::parse(read_file(place.file("json")))["skipped"].size(), 1U);
}

TEST(Bench, MeasuresInstalledPeers) {
  for (const char* peer : {"openmpi", "mpich", "raw-gloo", "torch"}) {
    const ScopedDirectory place;
    const Outcome outcome = run(bench({"--backend", "inproc", "--peer", peer, "--operation", kAll, "--sizes", "1K",
                                       "--rounds", "1", "--check", "--json", place.file("json")}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json whole = Json::parse(read_file(place.file("json")));
    std::set<std::string> subjects;
    for (const Json& row : whole["rows"]) {
      subjects.insert(row["backend"]);
      EXPECT_TRUE(row["wrong"].empty()) << row;
    }
    EXPECT_EQ(subjects.size() + whole["skipped"].size(), 2U) << whole;
#ifdef BACKPLANE_TEST_gloo
    EXPECT_TRUE(peer != std::string("raw-gloo") || whole["skipped"].empty()) << whole;  // its driver is built here
#endif
  }
}

TEST(Bench, MeasuresAPeerThatAProgramStarts) {
  const ScopedDirectory place;
  const std::filesystem::path bin = std::filesystem::path(BACKPLANE_TEST_COMMAND).parent_path();
  const std::string driver = bin.parent_path() / "libexec/backplane/bench_mpich";
  if (::access(driver.c_str(), X_OK) != 0) GTEST_SKIP() << "built without MPICH";
  const std::string program = place.file("mine");
  std::ofstream(program) << "#!/bin/sh\nranks=$1\nshift\nexec mpirun.mpich -n \"$ranks\" " << driver << " \"$@\"\n";
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  const Outcome outcome =
      run(bench({"-n", "2", "--backend", "inproc", "--peer", program, "--peer", place.file("none"), "--operation",
                 "all_reduce", "--sizes", "1K", "--rounds", "1", "--check", "--json", place.file("json")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::set<std::string> subjects;
  for (const Json& row : results_of(place.file("json"))) subjects.insert(row["backend"]);
  EXPECT_EQ(subjects, (std::set<std::string>{"inproc", "peer mine"}));
  EXPECT_TRUE(contains(outcome.out, "none cannot be executed: No such file or directory")) << outcome.out;
}

TEST(Bench, RejectsInvalidArguments) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--sizes", "6"}, "--sizes 6: expected multiples of 4"},
      {{"--sizes", "-4"}, "--sizes -4: expected"},
      {{"--sizes", "4X"}, "--sizes 4X: expected"},
      {{"--sizes", "4:64:1"}, "the factor must be 2 or more"},
      {{"--sizes", "4:64:2x"}, "the factor must be 2 or more"},
      {{"--sizes", "64M:4"}, "--sizes 64M:4: the range is empty"},
      {{"--operation", "all_reduse"}, "--operation: unknown operation 'all_reduse'; the operations are barrier, "},
      {{"--peer", "mpi"}, "--peer: unknown peer 'mpi'; the peers are openmpi, "},
      {{"--peer", "openmpi?x"}, "expected VARIABLE=VALUE"},
      {{"--pin", "-n", "4096"}, "--pin needs a core per rank, but there are"},
      {{"-n", "0"}, "--ranks: Value 0 not in range"},
      {{"--seconds", "no"}, "--seconds: Value no not in range"},
      {{"--tune", "--devices", "1"}, "--devices excludes --tune"},
  };
  for (const auto& [words, sentence] : cases) {
    Words all = {"bench", "--backend", "inproc"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, 2) << sentence << outcome.err;
    EXPECT_TRUE(contains(outcome.err, sentence)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  const Outcome nothing = run({"bench", "--backend", "none"});
  EXPECT_EQ(nothing.code, 1);
  EXPECT_TRUE(contains(nothing.err, "there is nothing to measure: name a peer with --peer")) << nothing.err;
  const Outcome unknown_part = run({"bench", "--backend", "inproc+nope"});
  EXPECT_EQ(unknown_part.code, 1);
  EXPECT_TRUE(contains(unknown_part.err, "unknown backend 'nope'")) << unknown_part.err;
  const Outcome unknown = run({"bench", "--backend", "nope"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_TRUE(contains(unknown.err, "unknown backend 'nope'")) << unknown.err;
  const Outcome unwritable = run({"bench", "--backend", "inproc", "--json", "/nowhere/json"});
  EXPECT_EQ(unwritable.code, 1);
  EXPECT_TRUE(contains(unwritable.err, "cannot write /nowhere/json: No such file")) << unwritable.err;
}

}  // namespace
}  // namespace backplane::test
