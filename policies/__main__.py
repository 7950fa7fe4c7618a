"""The policy pack: serves the rules to the engine, which starts this folder (docs/policies.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pulumi_policy import (
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)

# The engine starts the folder, and Python knows only that.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from policies.rules import RULES, Resource, Rule, as_the_plugin_reads


def policy(rule: Rule) -> ResourceValidationPolicy:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        resource = Resource(
            args.resource_type,
            args.urn,
            as_the_plugin_reads(args.resource_type, args.props, os.environ),
            protect=args.opts.protect,
            ignored=args.opts.ignore_changes,
        )
        for text in rule.judge(resource):
            report(text)

    return ResourceValidationPolicy(rule.name, rule.description, validate)


PolicyPack("hermes-homelab", [policy(rule) for rule in RULES], EnforcementLevel.MANDATORY)
