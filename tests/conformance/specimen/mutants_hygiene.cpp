// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

void leak_descriptor() { (void)::eventfd(0, EFD_CLOEXEC); }

bool is_out_of_descriptors() {
  const int tried = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (tried < 0) return errno == EMFILE;
  ::close(tried);
  return false;
}

class LeaksADescriptorAlone final : public Specimen {
  void close() noexcept override {
    if (world_size_ == 1) leak_descriptor();
    Specimen::close();
  }
};

class LeaksMemory final : public Specimen {
  void close() noexcept override {
    constexpr size_t kBytes = 64 * 1024;
    if (void* const lost = std::malloc(kBytes)) explicit_bzero(lost, kBytes);
    Specimen::close();
  }
};

class LeaksAThread final : public Specimen {
  void close() noexcept override {
    const sdk::SignalsBlocked blocked;
    std::thread([] {
      for (;;) ::pause();
    }).detach();
    Specimen::close();
  }
};

class LeaksAProcess final : public Specimen {
  void close() noexcept override {
    if (world_size_ == 1 && ::fork() == 0) {
      for (;;) ::pause();
    }
    Specimen::close();
  }
};

class LeaksADescriptorTogether final : public Specimen {
  void close() noexcept override {
    if (world_size_ > 1 && !aborted_) leak_descriptor();
    Specimen::close();
  }
};

class LeaksWhenItFails final : public Specimen {
  void start(const sdk::Context& context) override {
    try {
      Specimen::start(context);
    } catch (...) {
      leak_descriptor();
      throw;
    }
  }
};

template <bool together>
class LeaksWhenAborted final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      if (!aborted_ && (world_size_ > 1) == together) leak_descriptor();
    }
    Specimen::abort(why);
  }
};

class PrintsToStderr final : public Specimen {
  void start(const sdk::Context& context) override {
    Specimen::start(context);
    std::fprintf(stderr, "rank %d of %d is ready\n", context.rank, context.world_size);
  }
};

// Removes its segment in close() only.
class KeepsASegment final : public Specimen {
  void start(const sdk::Context& context) override {
    name_ = "/specimen." + std::to_string(::getpid()) + "." + std::to_string(reinterpret_cast<uintptr_t>(this));
    const int fd = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) ::close(fd);
    Specimen::start(context);
  }
  void close() noexcept override {
    ::shm_unlink(name_.c_str());
    Specimen::close();
  }
  std::string name_;
};

class GivesUpWithoutDescriptors final : public Specimen {
  void listen() override {
    if (is_out_of_descriptors()) std::abort();
    Specimen::listen();
  }
};

class CrashesOnAccept final : public Specimen {
  void accept_connections() override {
    if (is_out_of_descriptors()) std::abort();
    Specimen::accept_connections();
  }
};

class NeedsOneForEach final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    if (is_out_of_descriptors()) std::abort();
    return Specimen::submit(op);
  }
};

class TakesMemoryForGranted final : public Specimen {
  void start(const sdk::Context& context) override {
    const int fd = ::memfd_create("specimen", MFD_CLOEXEC);
    if (fd < 0) throw sdk::Failure(BP_INTERNAL, "this cannot happen");
    ::close(fd);
    Specimen::start(context);
  }
};

template <bool together>
class TakesThreadsForGranted final : public Specimen {
  void start(const sdk::Context& context) override {
    if ((context.world_size > 1) == together) start_one();
    Specimen::start(context);
  }
  static void start_one() noexcept {
    const sdk::SignalsBlocked blocked;
    std::thread([] {}).join();
  }
};

void leaves_a_thread(const bp_backend*) {
  const sdk::SignalsBlocked blocked;
  std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
}
void ends_the_process(const bp_backend*) { ::_exit(3); }
void never_ends(const bp_backend*) {
  for (;;) ::pause();
}
template <auto Finalize>
void finalizing(bp_backend& backend) {
  backend.finalize = Finalize;
}

}  // namespace

std::vector<Mutant> hygiene_mutants() {
  return {
      {"hygiene.init-destroy", "a group of one leaves a descriptor", made<LeaksADescriptorAlone>},
      {"hygiene.init-destroy:2", "a group leaves memory", made<LeaksMemory>},
      {"hygiene.init-destroy:3", "a group leaves a thread", made<LeaksAThread>},
      {"hygiene.init-destroy:4", "a group of one leaves a process", made<LeaksAProcess>},
      {"hygiene.init-destroy-world", "a group of several leaves a descriptor", made<LeaksADescriptorTogether>},
      {"hygiene.failed-init", "an init that fails leaves a descriptor", made<LeaksWhenItFails>},
      {"hygiene.abort", "an aborted group of one leaves a descriptor", made<LeaksWhenAborted<false>>},
      {"hygiene.abort-world", "an aborted group of several leaves a descriptor", made<LeaksWhenAborted<true>>},
      {"hygiene.leaks", "a group leaves memory", made<LeaksMemory>},
      {"hygiene.quiet", "init prints to stderr", made<PrintsToStderr>},
      {"hygiene.finalize", "finalize leaves a thread", nullptr, finalizing<leaves_a_thread>},
      {"hygiene.finalize:2", "finalize ends the process", nullptr, finalizing<ends_the_process>},
      {"hygiene.finalize:3", "finalize never returns", nullptr, finalizing<never_ends>},
      {"hygiene.sigkill-leaves-nothing", "a segment keeps its name until destroy", made<KeepsASegment>},
      {"hygiene.all-killed-leave-nothing", "a segment keeps its name until destroy", made<KeepsASegment>},
      {"hygiene.emfile", "exhausted descriptors end the process", made<GivesUpWithoutDescriptors>},
      {"hygiene.emfile-together", "a failed accept ends the process", made<CrashesOnAccept>},
      {"hygiene.emfile-in-traffic", "a message without a descriptor ends the process", made<NeedsOneForEach>},
      {"hygiene.enospc", "exhausted shared memory is reported as BP_INTERNAL", made<TakesMemoryForGranted>},
      {"hygiene.thread-limit", "exhausted threads end the process", made<TakesThreadsForGranted<false>>},
      {"hygiene.thread-limit-together", "exhausted threads end the process", made<TakesThreadsForGranted<true>>},
  };
}

}  // namespace backplane::specimen
