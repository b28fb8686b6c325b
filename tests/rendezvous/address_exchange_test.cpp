// SPDX-License-Identifier: Apache-2.0
//
// Launchers that do not reply, and that are asked again. tests/tools/launchers_test.cpp runs real ones.
#include "rendezvous/address_exchange.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "backplane/base/descriptor.hpp"
#include "rendezvous/meeting_place.hpp"
#include "store/store_fixture.hpp"
#include "support/scoped_log.hpp"

namespace backplane::core {
namespace {

class PmixTest : public testing::Test {
 protected:
  void SetUp() override {
    // A library that is loaded already is found by its soname.
    library_ = ::dlopen(BACKPLANE_TEST_PMIX, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << ::dlerror();
    hang_in_ = reinterpret_cast<void (*)(const char*)>(::dlsym(library_, "pmix_double_hang_in"));
    ASSERT_NE(hang_in_, nullptr);
  }
  void TearDown() override { hang_in_(""); }

  void* library_ = nullptr;
  void (*hang_in_)(const char*) = nullptr;
};

TEST_F(PmixTest, ExchangesTheTextOfRank0) { EXPECT_EQ(exchange_by_pmix(0, "x", soon()), "backplane-address"); }

TEST_F(PmixTest, ALauncherThatDoesNotReplyEndsTheExchangeAtItsDeadline) {
  for (const char* const function : {"PMIx_Init", "PMIx_Put", "PMIx_Commit"}) {
    hang_in_(function);
    const std::string sentence = std::string(function) + " did not return within [0-9]+ ms: the PMIx server of the";
    EXPECT_ERROR_LIKE(BP_TIMEOUT, sentence, exchange_by_pmix(0, "x", in_ms(50)));
    hang_in_("");
  }
}

TEST_F(PmixTest, AFinalizeThatDoesNotReturnLeavesTheResult) {
  test::ScopedLog log;
  hang_in_("PMIx_Finalize");
  EXPECT_EQ(exchange_by_pmix(1, "", soon()), "backplane-address");
  EXPECT_NE(log.text().find("PMIx_Finalize did not return within 2 s"), std::string::npos) << log.text();
}

// The launcher's end of PMI-1: rank 0 gives one text after the other.
class PmiLauncher {
 public:
  explicit PmiLauncher(std::vector<std::string> texts) : texts_(std::move(texts)) {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    own_ = base::Descriptor(pair[0]);
    ranks_ = base::Descriptor(pair[1]);
    thread_ = std::thread([this] { serve(); });
  }
  ~PmiLauncher() {
    ::shutdown(own_.get(), SHUT_RDWR);
    thread_.join();
  }
  PmiLauncher(const PmiLauncher&) = delete;
  PmiLauncher& operator=(const PmiLauncher&) = delete;
  int fd() const { return ranks_.get(); }
  // The requests, in order: "init get_my_kvsname ...".
  std::string requests() {
    ::shutdown(own_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([] {});
    return requests_;
  }

 private:
  void serve() {
    std::string line;
    char c = 0;
    while (::recv(own_.get(), &c, 1, 0) == 1) {
      line += c;
      if (c != '\n') continue;
      const std::string command = line.substr(4, line.find_first_of(" \n") - 4);
      requests_ += command + " ";
      std::string reply = "cmd=reply rc=0";
      if (command == "get_my_kvsname") reply += " kvsname=space";
      if (command == "get") reply += " value=" + hex(next_ < texts_.size() ? texts_[next_++] : "");
      reply += "\n";
      if (::send(own_.get(), reply.data(), reply.size(), MSG_NOSIGNAL) < 0) return;
      line.clear();
    }
  }
  static std::string hex(const std::string& text) {
    std::string result;
    for (const char each : text) result += fmt::format("{:02x}", static_cast<unsigned char>(each));
    return result;
  }

  const std::vector<std::string> texts_;
  size_t next_ = 0;
  std::string requests_;
  base::Descriptor own_;
  base::Descriptor ranks_;
  std::thread thread_;
};

TEST(PmiTest, ARankThatLearnsThatThereIsNoStoreAsksAgain) {
  Environment environment;
  PmiLauncher launcher({"none no descriptors", "none no memory", "127.0.0.1 1 job"});
  environment.set("PMI_FD", std::to_string(launcher.fd()));
  EXPECT_EQ(exchange_address({LauncherKind::kPmi, Afterwards::kEnd}, 1, {}, soon()), "none no descriptors");
  EXPECT_EQ(exchanged_address(), "") << "the next start exchanges again";
  EXPECT_EQ(exchange_address({LauncherKind::kPmi, Afterwards::kEnd}, 1, {}, soon()), "none no memory");
  EXPECT_EQ(exchange_by_pmi(1, {}, Afterwards::kEnd, soon()), "127.0.0.1 1 job");
  EXPECT_EQ(launcher.requests(), "init get_my_kvsname barrier_in get barrier_in get barrier_in get finalize ");
}

TEST(PmiTest, AConnectionThatIsKeptServesOn) {
  Environment environment;
  PmiLauncher launcher({"127.0.0.1 1 job", "127.0.0.1 2 job"});
  environment.set("PMI_FD", std::to_string(launcher.fd()));
  EXPECT_EQ(exchange_by_pmi(1, {}, Afterwards::kKeep, soon()), "127.0.0.1 1 job");
  EXPECT_EQ(exchange_by_pmi(1, {}, Afterwards::kEnd, soon()), "127.0.0.1 2 job");
  EXPECT_EQ(launcher.requests(), "init get_my_kvsname barrier_in get barrier_in get finalize ");
}

}  // namespace
}  // namespace backplane::core
