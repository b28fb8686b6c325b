// SPDX-License-Identifier: Apache-2.0
//
// A view of another store, limited to the keys with a prefix.
#include <utility>

#include "store/checks.hpp"
#include "store/store.hpp"

namespace backplane::core {
namespace {

class PrefixStore final : public Store {
 public:
  // `inner` must be a separate view: an interruption then ends only calls through this prefix.
  PrefixStore(std::shared_ptr<Store> inner, std::string prefix)
      : inner_(std::move(inner)), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    inner_->set(full(key), value, deadline);
  }
  std::string get(std::string_view key, Deadline deadline) override { return inner_->get(full(key), deadline); }
  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    return inner_->add(full(key), delta, deadline);
  }
  void wait(const std::vector<std::string>& keys, Deadline deadline) override { inner_->wait(full(keys), deadline); }
  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    return inner_->check(full(keys), deadline);
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    return inner_->compare_set(full(key), expected, desired, deadline);
  }
  bool remove(std::string_view key, Deadline deadline) override { return inner_->remove(full(key), deadline); }
  bool removes_prefixes() const override { return inner_->removes_prefixes(); }
  void remove_prefix(std::string_view prefix, Deadline deadline) override {
    inner_->remove_prefix(prefix_ + std::string(prefix), deadline);
  }
  int64_t num_keys(Deadline deadline) override { return inner_->num_keys(deadline); }
  std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                     Deadline deadline) override {
    return inner_->enroll({prefix_ + enrolment.scope, enrolment.rank, enrolment.identity}, std::move(on_loss),
                          deadline);
  }
  void report_end(const Enrolment& rank, const std::string& reason, Deadline deadline) override {
    inner_->report_end({prefix_ + rank.scope, rank.rank, rank.identity}, reason, deadline);
  }
  void interrupt(int32_t status, const std::string& why) override { inner_->interrupt(status, why); }
  bool interrupted() const override { return inner_->interrupted(); }
  std::shared_ptr<Store> view() override { return std::make_shared<PrefixStore>(inner_->view(), prefix_); }
  std::string describe() const override { return inner_->describe(); }
  std::string local_address() const override { return inner_->local_address(); }

 private:
  std::string full(std::string_view key) const {
    check_key(key);
    return prefix_ + std::string(key);
  }
  std::vector<std::string> full(const std::vector<std::string>& keys) const {
    std::vector<std::string> all;
    all.reserve(keys.size());
    for (const auto& key : keys) all.push_back(full(key));
    return all;
  }

  const std::shared_ptr<Store> inner_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(const std::shared_ptr<Store>& inner, std::string prefix) {
  return std::make_shared<PrefixStore>(inner->view(), std::move(prefix));
}

}  // namespace backplane::core
