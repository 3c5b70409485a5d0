from django.db import models


class Order(models.Model):
    number = models.CharField(primary_key=True, max_length=64)
    attempt = models.PositiveIntegerField()
